"""Rejects: nothing of an event that could not be read is lost, and newer code lands it, once."""

import threading
from pathlib import Path

import msgspec
import pytest

from ingest import rejects, rows
from ingest.config import LogSettings
from ingest.contracts.errors import ContractError
from ingest.contracts.events import decode_event, encode_event
from ingest.lake import ERASURES, FEEDBACK, REJECTS, TURNS, open_table, read
from ingest.land import land
from ingest.spool import Spool
from tests.log_events import accept, forget, turn

pytestmark = pytest.mark.integration

OF_TOMORROW = "tomorrow"


def old_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that does not know the dialect of tomorrow yet, and calls itself otherwise."""

    def decode(payload: bytes):
        if OF_TOMORROW.encode() in payload:
            raise ContractError("not an event: an unknown word")
        return decode_event(payload)

    monkeypatch.setattr(rows, "decode_event", decode)
    monkeypatch.setattr(rows, "READER", "old")
    monkeypatch.setattr(rejects, "READER", "old")


def spool_of(root: Path, *events) -> None:
    spool = Spool.open(root)
    spool.append_sync(list(events))
    spool.close()


def ids(lake: Path, table: str = TURNS, name: str = "turn_id") -> list:
    return sorted(read(lake, table).to_table(columns=[name])[name].to_pylist())


def landed_by_old_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more) -> Path:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    late = accept("f", "new", subject=OF_TOMORROW)
    new = [turn(f"new-{i}", dialect=OF_TOMORROW, subject=f"s{i}") for i in range(3)]
    broken = turn("broken", weight_versions=())
    spool_of(spool, turn("a"), *new, late, broken, turn("b"), *more)
    with monkeypatch.context() as patch:
        old_code(patch)
        report = land(log=LogSettings(), spool=spool, lake=lake)
        assert (report.rows[TURNS], report.rows[REJECTS], report.relanded) == (2, 5, 0)
        assert land(log=LogSettings(), spool=spool, lake=lake).relanded == 0, "the same code does not try again"
    return lake


def test_newer_code_lands_what_older_code_could_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = landed_by_old_code(tmp_path, monkeypatch)
    report = land(log=LogSettings(), spool=tmp_path / "spool", lake=lake)
    assert (report.relanded, sum(report.rows.values())) == (4, 0)
    assert ids(lake) == ["a", "b", "new-0", "new-1", "new-2"]
    assert ids(lake, FEEDBACK, "feedback_id") == ["f"]
    [left] = read(lake, REJECTS).to_table().to_pylist()
    assert (left["reader"], msgspec.msgpack.decode(left["payload"])["turn_id"]) == (rows.READER, "broken")
    assert land(log=LogSettings(), spool=tmp_path / "spool", lake=lake).relanded == 0


def test_what_a_newer_version_wrote_waits_with_its_bytes_until_this_code_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    newer = turn("newer", schema=2, finish="paused")
    applause = msgspec.structs.replace(accept("f", "newer"), kind="applaud")
    spool_of(spool, turn("a"), newer, applause, turn("b"))
    report = land(log=LogSettings(), spool=spool, lake=lake)
    assert (report.rows[TURNS], report.rows[REJECTS]) == (2, 2)
    kept = {row["sequence"]: row for row in read(lake, REJECTS).to_table().to_pylist()}
    assert "a newer version of everloop wrote it: turn of schema 2" in kept[2]["reason"]
    assert "applaud" in kept[3]["reason"], "a new word needs no new number"
    assert [kept[2]["payload"], kept[3]["payload"]] == [encode_event(newer), encode_event(applause)]

    def of_tomorrow(payload: bytes):
        fields = msgspec.msgpack.decode(payload)
        known = {"schema": 1, "finish": "stop"} if fields["type"] == "turn" else {"kind": "accept"}
        return decode_event(msgspec.msgpack.encode(fields | known))

    monkeypatch.setattr(rows, "decode_event", of_tomorrow)
    monkeypatch.setattr(rows, "READER", "of tomorrow")
    monkeypatch.setattr(rejects, "READER", "of tomorrow")
    report = land(log=LogSettings(), spool=spool, lake=lake)
    assert (report.relanded, sum(report.rows.values())) == (2, 0)
    assert (ids(lake), ids(lake, FEEDBACK, "feedback_id")) == (["a", "b", "newer"], ["f"])
    assert read(lake, REJECTS).count_rows() == 0


@pytest.mark.parametrize("step", [FEEDBACK, TURNS, REJECTS])
def test_killed_in_mid_way_it_lands_the_rest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    lake = landed_by_old_code(tmp_path, monkeypatch)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        real = rejects._append
        if step == REJECTS:
            patch.setattr(rejects, "_tell", dies)
        else:
            patch.setattr(
                rejects,
                "_append",
                lambda table, *rest: dies() if table.name == step else real(table, *rest),
            )
        with pytest.raises(KeyboardInterrupt):
            land(log=LogSettings(), spool=tmp_path / "spool", lake=lake)
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake)
    assert ids(lake) == ["a", "b", "new-0", "new-1", "new-2"]
    assert ids(lake, FEEDBACK, "feedback_id") == ["f"]
    assert read(lake, REJECTS).count_rows() == 1


def test_two_landers_of_newer_code_at_once_land_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = landed_by_old_code(tmp_path, monkeypatch)
    both = threading.Barrier(2)
    real = rejects.commit

    once = threading.local()

    def held(*arguments):
        if not getattr(once, "done", False):
            once.done = True
            both.wait(60)  # both have looked at the table, and found nothing of it there
        return real(*arguments)

    monkeypatch.setattr(rejects, "commit", held)
    landers = [
        threading.Thread(target=land, kwargs={"log": LogSettings(), "spool": tmp_path / "spool", "lake": lake})
        for _ in range(2)
    ]
    for lander in landers:
        lander.start()
    for lander in landers:
        lander.join()
    assert ids(lake) == ["a", "b", "new-0", "new-1", "new-2"]
    assert ids(lake, FEEDBACK, "feedback_id") == ["f"]
    assert read(lake, REJECTS).count_rows() == 1


def test_what_was_erased_meanwhile_is_not_landed_by_newer_code_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = landed_by_old_code(tmp_path, monkeypatch)
    spool_of(tmp_path / "spool", forget("s1"))
    with monkeypatch.context() as patch:
        old_code(patch)
        land(log=LogSettings(), spool=tmp_path / "spool", lake=lake)
    assert land(log=LogSettings(), spool=tmp_path / "spool", lake=lake).relanded == 4, "an erasure of the turn is one"
    assert ids(lake) == ["a", "b", "new-0", "new-2"]
    assert ids(lake, ERASURES, "target") == ["subject", "turn"]
    assert open_table(lake, REJECTS).to_pyarrow_dataset().count_rows() == 1
