"""Merging files: a session is stored once, no row twice or lost, and whatever else goes on meanwhile counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from ingest import sorted_runs
from ingest.commits import REWRITER, fence
from ingest.contracts.erasure import erasure_digest
from ingest.forget import delete_rows
from ingest.lake import FEEDBACK, REJECTS, TURNS, open_table, read
from ingest.sorted_runs import LEVELS, in_order, merge, runs_of
from tests.lakes import feedback, land, turn


def session(name: str, turns: int, tokens: int) -> list[dict[str, Any]]:
    """An agent's session, whose prompts grow to `tokens` tokens."""
    rng = np.random.default_rng(sum(name.encode()))
    ids = rng.integers(0, 50_000, tokens).tolist()
    text = rng.bytes(2 * tokens).hex()
    return [
        turn(
            f"{name} {at:03}",
            session_id=name,
            prompt=ids[: tokens * at // turns],
            request='{"messages":[' + text[: 4 * tokens * at // turns] + '],"model":"p"}',
            started_at=100.0 + at,
        )
        for at in range(1, turns + 1)
    ]


def size(lake: Path) -> int:
    """Bytes of the files that the newest version of the turns names."""
    return sum(run.size for run in runs_of(open_table(lake, TURNS)))


def rows(lake: Path, name: str = TURNS) -> list[dict[str, Any]]:
    found = read(lake, name).to_table().to_pylist()
    return sorted(found, key=lambda row: (row["spool_id"], row["sequence"]))


def merge_all(lake: Path, name: str = TURNS) -> int:
    done = 0
    while merge(open_table(lake, name), name):
        done += 1
    return done


def one_by_one(lake: Path, *events: dict[str, Any], name: str = TURNS) -> None:
    for event in events:
        land(lake, name, event)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files are enough for a merge."""
    monkeypatch.setattr(sorted_runs, "_RUNS", 2)


def test_a_session_that_lands_turn_by_turn_is_stored_once(tmp_path: Path) -> None:
    kept = {}
    for turns in (12, 24):
        lake = tmp_path / str(turns)
        for together in zip(*(session(name, turns, 2000 * turns) for name in ("one", "two")), strict=True):
            land(lake, TURNS, *together)
        before, whole = rows(lake), size(lake)
        assert merge_all(lake) == 1
        assert rows(lake) == before
        kept[turns] = size(lake)
    once = 2 * 24 * 2000 * (2 + 2)  # of each token two bytes of its id and two of its text are not to be compressed
    assert whole > 8 * once
    assert kept[24] < 1.5 * once
    assert kept[24] < 2.2 * kept[12], "twice as long takes twice as much"


def test_a_row_is_written_anew_a_bounded_number_of_times(tmp_path: Path, pairs: None) -> None:
    for at in range(2 ** (LEVELS + 1)):
        land(tmp_path, TURNS, turn(f"{at:02}"))
        merge_all(tmp_path)
    runs = runs_of(open_table(tmp_path, TURNS))
    assert [run.level for run in runs] == [LEVELS, LEVELS], "those are left as they are"
    assert len(rows(tmp_path)) == 2 ** (LEVELS + 1)


def test_every_table_can_be_merged(tmp_path: Path, pairs: None) -> None:
    one_by_one(tmp_path, feedback("b", text=None, value=0.5), feedback("a", value=None), name=FEEDBACK)
    reject = {"reason": "r", "payload": b"\xff", "about": ["x"], "reader": "v", "spool_id": "s", "landed_at": 1.0}
    one_by_one(tmp_path, *[reject | {"sequence": at} for at in range(2)], name=REJECTS)
    for name in (FEEDBACK, REJECTS):
        before = rows(tmp_path, name)
        assert merge_all(tmp_path, name) == 1
        assert rows(tmp_path, name) == before


def test_what_the_log_says_of_a_merged_file_is_what_delta_rs_would(tmp_path: Path, pairs: None) -> None:
    one_by_one(tmp_path, turn("a", finished_at=7.0), turn("b", finished_at=9.0, trainable=False))
    land(tmp_path / "whole", TURNS, *read(tmp_path, TURNS).to_table().to_pylist())
    merge_all(tmp_path)
    said, expected = (
        pa.table(open_table(lake, TURNS).get_add_actions(flatten=True)).drop(
            ["path", "size_bytes", "modification_time"]
        )
        for lake in (tmp_path, tmp_path / "whole")
    )
    assert said.to_pylist() == expected.to_pylist()


def test_erasing_a_session_leaves_every_other_turn_whole(tmp_path: Path, pairs: None) -> None:
    both = zip(session("one", 8, 800), session("two", 8, 800), strict=True)
    one_by_one(tmp_path, *[row for each in both for row in each])
    merge_all(tmp_path)
    others = [row for row in rows(tmp_path) if row["session_id"] == "two"]
    assert delete_rows(tmp_path, {erasure_digest("session", "one"): "session"})[TURNS] == 8
    assert rows(tmp_path) == others
    one_by_one(tmp_path, *session("three", 2, 20))
    assert merge_all(tmp_path)
    assert [row for row in rows(tmp_path) if row["session_id"] == "two"] == others


@pytest.mark.parametrize("other", ["a merge", "a deletion", "an erasure's fence"])
def test_a_merge_that_others_overtook_is_refused_and_leaves_nothing(tmp_path: Path, pairs: None, other: str) -> None:
    one_by_one(tmp_path, turn("a"), turn("b", session_id="erased"))
    overtaken = open_table(tmp_path, TURNS)
    if other == "a merge":
        merge_all(tmp_path)
    elif other == "a deletion":
        delete_rows(tmp_path, {erasure_digest("session", "erased"): "session"})
    else:
        fence(tmp_path)
    before, files = rows(tmp_path), {path.name for path in (tmp_path / TURNS).glob("*.parquet")}
    with pytest.raises(CommitFailedError):
        merge(overtaken, TURNS)
    assert rows(tmp_path) == before
    assert {path.name for path in (tmp_path / TURNS).glob("*.parquet")} == files


@pytest.mark.parametrize("predicate", ["turn_id = 'a'", "spool_id = 's' AND sequence = 7"])
def test_a_deletion_that_a_merge_overtook_is_refused(tmp_path: Path, pairs: None, predicate: str) -> None:
    one_by_one(tmp_path, turn("a", sequence=7), turn("b", sequence=9))
    overtaken = open_table(tmp_path, TURNS)
    assert merge(open_table(tmp_path, TURNS), TURNS)
    with pytest.raises(CommitFailedError):
        overtaken.delete(predicate, REWRITER)


def test_what_lands_during_a_merge_stays(tmp_path: Path, pairs: None) -> None:
    one_by_one(tmp_path, turn("a"), turn("b"))
    begun = open_table(tmp_path, TURNS)
    land(tmp_path, TURNS, turn("c"))
    assert merge(begun, TURNS)
    assert [row["turn_id"] for row in rows(tmp_path)] == ["a", "b", "c"]


def test_what_a_commit_names_stays_even_if_it_then_fails(
    tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(tmp_path, turn("a"), turn("b"))
    commit = DeltaTable.create_write_transaction

    def fails_late(*told: Any, **named: Any) -> None:
        commit(*told, **named)
        raise CommitFailedError("the checkpoint after it could not be written")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_late)
    with pytest.raises(CommitFailedError):
        merge(open_table(tmp_path, TURNS), TURNS)
    assert [row["turn_id"] for row in rows(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize("error", [CommitFailedError("another one came first"), OSError("no answer")])
def test_a_merge_removes_what_it_wrote_only_where_it_was_refused(
    tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Where nobody answered, the commit may yet come to be. An erasure may have removed some of the files already."""
    for name in ("_GROUP_BYTES", "_FILE_BYTES", "_SLICE_BYTES"):
        monkeypatch.setattr(sorted_runs, name, 5_000)
    one_by_one(tmp_path, *[row for at in range(4) for row in session(f"s{at}", 5, 2000)])
    merge_all(tmp_path)
    land(tmp_path, TURNS, *session("s9", 5, 8000))
    land(tmp_path, TURNS, *session("s8", 5, 8000))
    table = open_table(tmp_path, TURNS)
    before = {path.name for path in (tmp_path / TURNS).glob("*.parquet")}
    written: list[Path] = []

    def fails(*told: Any, **named: Any) -> None:
        written.extend(path for path in (tmp_path / TURNS).glob("*.parquet") if path.name not in before)
        for gone in written[::2]:
            gone.unlink()
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(type(error)):
        merge(table, TURNS)
    assert len(written) > 2
    assert [path.exists() for path in written[1::2]] == [isinstance(error, OSError)] * len(written[1::2])


def test_a_merge_is_on_disk_before_its_commit(tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one(tmp_path, turn("a"), turn("b"))
    synced: list[Path] = []
    monkeypatch.setattr(sorted_runs, "sync", synced.append)
    commit = DeltaTable.create_write_transaction

    def commits(table: DeltaTable, actions: list[Any], **named: Any) -> None:
        assert {path.name for path in synced} == {actions[0].path, TURNS}
        commit(table, actions, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commits)
    assert merge(open_table(tmp_path, TURNS), TURNS)
    assert all(path.exists() for path in synced)


def test_large_runs_are_several_files_and_row_groups(
    tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bytes_of_it in (("_GROUP_BYTES", 20_000), ("_FILE_BYTES", 30_000), ("_SLICE_BYTES", 5_000)):
        monkeypatch.setattr(sorted_runs, name, bytes_of_it)
    one_by_one(tmp_path, *[row for at in range(4) for row in session(f"s{at}", 5, 2000)])
    before = rows(tmp_path)
    assert merge_all(tmp_path)
    assert rows(tmp_path) == before
    [*_, run] = runs_of(open_table(tmp_path, TURNS))
    assert len(run.files) > 1


numbered = st.lists(st.lists(st.tuples(st.text("abc", max_size=2), st.integers(0, 3)), max_size=12), max_size=5)


@given(numbered, st.integers(1, 4), st.booleans())
def test_merged_streams_have_every_row_once_and_in_order(
    found: list[list[tuple[str, int]]], size: int, sorted_: bool
) -> None:
    runs = [sorted(run) if sorted_ else run for run in found]
    schema = pa.schema({"key": pa.string(), "at": pa.int64()})
    tables = [pa.Table.from_pylist([{"key": key, "at": at} for key, at in run], schema) for run in runs]
    streams = [iter([table.slice(at, size) for at in range(0, len(table), size)]) for table in tables]
    merged = [(row["key"], row["at"]) for table in in_order(streams, ("key", "at")) for row in table.to_pylist()]
    in_its_place = sorted(row for run in runs for row in run)
    assert (merged if sorted_ else sorted(merged)) == in_its_place
