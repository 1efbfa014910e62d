"""Nothing of somebody who is forgotten stays in the lake, in whatever order landers and erasures come."""

import threading
from pathlib import Path

import pytest

from ingest import commits, embedded_log
from ingest import land as landing
from ingest.commits import Erasures, fence
from ingest.config import LogSettings
from ingest.contracts.events import Record, encode_event
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, open_table, read
from ingest.land import land
from ingest.rows import sort
from ingest.spool import Spool
from tests.lakes import mentions
from tests.log_events import accept, forget, turn

pytestmark = pytest.mark.integration


def spool_of(root: Path, *events) -> None:
    spool = Spool.open(root)
    spool.append_sync(list(events))
    spool.close()


def column(lake: Path, table: str, name: str) -> list:
    return sorted(read(lake, table).to_table(columns=[name])[name].to_pylist())


@pytest.mark.parametrize("where", [TURNS, FEEDBACK])
@pytest.mark.parametrize("there", [True, False])
def test_an_append_that_began_before_an_erasure_lands_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, there: bool
):
    """The lander has chosen its rows and stands right before its commit when the erasure comes, and the deletion."""
    lake = tmp_path / "lake"
    if there:
        spool_of(tmp_path / "before", turn("old", subject="gone"), accept("f-old", "old", subject="gone"))
        land(log=LogSettings(), spool=tmp_path / "before", lake=lake)
    spool_of(tmp_path / "spool", turn("a", subject="gone"), turn("b"), accept("f-a", "a", subject="x"))
    ready, go = threading.Event(), threading.Event()
    real = commits.commit

    def held(table, rows, transactions, now):
        if table.table_uri.rstrip("/").endswith(where) and rows.num_rows and not ready.is_set():
            ready.set()
            assert go.wait(60)
        return real(table, rows, transactions, now)

    monkeypatch.setattr(landing, "commit", held)
    lander = threading.Thread(target=land, kwargs={"log": LogSettings(), "spool": tmp_path / "spool", "lake": lake})
    lander.start()
    assert ready.wait(60)
    erasing = Erasures(lake)
    rows = sort([Record("eraser", 1, encode_event(forget("gone")))], erasing.read(), 0.0).tables[ERASURES]
    real(erasing.table.snapshot, rows, {"eraser": 1}, 0.0)
    fence(lake)
    open_table(lake, TURNS).delete("subject = 'gone'")
    open_table(lake, FEEDBACK).delete("subject = 'gone'")
    go.set()
    lander.join()
    assert column(lake, TURNS, "turn_id") == ["b"]
    assert read(lake, FEEDBACK).count_rows() == 0
    assert column(lake, ERASURES, "target") == ["subject", "turn"]


def test_feedback_goes_when_its_turn_comes_and_is_dropped(tmp_path: Path):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool_of(spool, forget("gone"), accept("first-word", "a", subject="somebody else"), accept("f2", "b", subject="x"))
    land(log=LogSettings(), spool=spool, lake=lake)
    assert column(lake, FEEDBACK, "feedback_id") == ["f2", "first-word"]
    spool_of(spool, turn("a", subject="gone"), turn("b"))
    report = land(log=LogSettings(), spool=spool, lake=lake)
    assert report.erased == 1
    assert column(lake, FEEDBACK, "feedback_id") == ["f2"]
    spool_of(spool, accept("f3", "a", subject="somebody else"), accept("f4", "b", subject="x"))
    land(log=LogSettings(), spool=spool, lake=lake)
    assert column(lake, FEEDBACK, "feedback_id") == ["f2", "f4"]
    assert not mentions(lake, "first-word")


def test_a_lander_killed_between_the_erasure_of_a_turn_and_its_feedback_does_it_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool_of(spool, forget("gone"), accept("first-word", "a", subject="somebody else"))
    land(log=LogSettings(), spool=spool, lake=lake)
    spool_of(spool, turn("a", subject="gone"))

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(landing, "fence", dies)
        with pytest.raises(KeyboardInterrupt):
            land(log=LogSettings(), spool=spool, lake=lake)
    assert column(lake, FEEDBACK, "feedback_id") == ["first-word"]
    land(log=LogSettings(), spool=spool, lake=lake)
    assert column(lake, FEEDBACK, "feedback_id") == []
    assert column(lake, ERASURES, "target") == ["subject", "turn"]


def test_an_erasure_that_comes_within_a_batch_leaves_the_turns_before_it_an_erasure_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The batch's own erasures are committed; then another comes, and the turn that it drops stands before them."""
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool_of(spool, turn("a", subject="second"), forget("first"), turn("b"))
    real = landing.append
    came = []

    def append(table, rows, upto, erasures):
        if table.name == FEEDBACK and not came:
            came.append(True)
            other = Erasures(lake)
            second = sort([Record("other", 1, encode_event(forget("second")))], other.read(), 0.0).tables[ERASURES]
            commits.commit(other.table.snapshot, second, {"other": 1}, 0.0)
        return real(table, rows, upto, erasures)

    monkeypatch.setattr(landing, "append", append)
    report = land(log=LogSettings(), spool=spool, lake=lake)
    assert (column(lake, TURNS, "turn_id"), report.erased) == (["b"], 1)
    assert column(lake, ERASURES, "target") == ["subject", "subject", "turn"]


def test_a_batch_that_was_sorted_before_the_erasure_ahead_of_it_had_landed_lands_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Batches are sorted while the one before is appended: this one's append waits until the next is sorted."""
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool_of(spool, turn("a"), forget("gone"), turn("b", subject="gone"), turn("c"), accept("f", "b", subject="x"))
    monkeypatch.setattr(embedded_log, "BATCH_RECORDS", 2)
    sorted_ahead = threading.Event()
    real_sort, real_append = landing.sort, landing.append

    def sorts(batch, *rest):
        found = real_sort(batch, *rest)
        if batch[0].sequence == 3:
            sorted_ahead.set()
        return found

    def append(*arguments):
        assert sorted_ahead.wait(60)
        return real_append(*arguments)

    monkeypatch.setattr(landing, "sort", sorts)
    monkeypatch.setattr(landing, "append", append)
    report = land(log=LogSettings(), spool=spool, lake=lake)
    assert (column(lake, TURNS, "turn_id"), column(lake, FEEDBACK, "feedback_id"), report.erased) == (["a", "c"], [], 2)
    assert column(lake, ERASURES, "target") == ["subject", "turn"]


def test_rejects_of_the_forgotten_can_be_told_by_their_digest(tmp_path: Path):
    from ingest.contracts.erasure import erasure_digest

    lake = tmp_path / "lake"
    spool_of(tmp_path / "spool", turn("a", subject="gone", weight_versions=()), turn("b", weight_versions=()))
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake)
    assert read(lake, REJECTS).count_rows() == 2
    open_table(lake, REJECTS).delete(f"array_has(about, '{erasure_digest('subject', 'gone')}')")
    [left] = read(lake, REJECTS).to_table().to_pylist()
    assert b"gone" not in left["payload"]
