"""Finding one's way on the embedded log: the right events, and no segment opened that is not needed."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from ingest import seek
from ingest.config import LogSettings
from ingest.contracts.events import Lost, Record, encode_event
from ingest.land import land
from ingest.log import LogError
from ingest.spool import Spool, SpoolFolder, folders
from ingest.spool.segment import ActiveSegment, SealedSegment
from pipelines.cli import app
from pipelines.home import Home
from pipelines.stack.addresses import Addresses
from tests.log_events import accept, forget, turn

LOG = LogSettings(retention_days=36_500)
SEGMENTS, ROWS = 16, 4


def spool_of(root: Path, name: str, begins: int, segments: int = SEGMENTS) -> SpoolFolder:
    """A closed spool; its turn `<name>-<i>` ended at `begins + i`, and each segment was sealed with its last turn."""
    folder = SpoolFolder(root / name)
    folder.path.mkdir(parents=True)
    for at in range(0, segments * ROWS, ROWS):
        active = ActiveSegment(folder.path / "active-1.db")
        events = [turn(f"{name}-{i}", finished_at=float(begins + i)) for i in range(at, at + ROWS)]
        active.write(at + 1, [encode_event(event) for event in events])
        sealed = active.seal()
        assert sealed is not None
        os.utime(sealed.path, (begins + at + ROWS, begins + at + ROWS))
    folder.mark_closed()
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The segments that are opened."""
    seen: list[Path] = []
    read = SpoolFolder.read

    def noting(self: SpoolFolder, segment: SealedSegment, after: int = 0):
        seen.append(segment.path)
        return read(self, segment, after)

    monkeypatch.setattr(SpoolFolder, "read", noting)
    return seen


def ids(records: list[Record]) -> list[str | None]:
    return [seek.glance(record.payload).turn_id for record in records]


def test_a_place_opens_its_own_segment(tmp_path: Path, opened: list[Path]) -> None:
    spool_of(tmp_path, "a", 1000)
    spool_of(tmp_path, "b", 2000)
    assert ids(seek.place(LOG, tmp_path, "b", 39, 2)) == ["b-38", "b-39"]
    assert len(opened) == 1
    assert ids(seek.place(LOG, tmp_path, "b", 40, 2)) == ["b-39", "b-40"], "and goes on in the next one"
    assert len(opened) == 3
    with pytest.raises(LogError, match="no sealed event from sequence 1000 on"):
        seek.place(LOG, tmp_path, "b", 1000, 2)
    with pytest.raises(LogError, match=r"there is no spool \.\./a"):
        seek.place(LOG, tmp_path / "b", "../a", 1, 1)


@pytest.mark.parametrize("at", [1000.0, 1017.5, 1018.0, 1063.0])
def test_a_time_is_found_by_halves(tmp_path: Path, opened: list[Path], at: float) -> None:
    spool_of(tmp_path, "a", 1000)
    expected = [f"a-{i}" for i in range(SEGMENTS * ROWS) if 1000 + i >= at][:3]
    assert ids(seek.since(LOG, tmp_path, at, 3)) == expected
    assert len(set(opened)) <= 7, "four to find it, and what is read"


def test_a_time_is_found_over_all_spools_in_order_of_time(tmp_path: Path) -> None:
    spool_of(tmp_path, "a", 1000)
    spool_of(tmp_path, "b", 1002)
    assert ids(seek.since(LOG, tmp_path, 1010.0, 5)) == ["a-10", "b-8", "a-11", "b-9", "a-12"]
    assert seek.since(LOG, tmp_path, 9999.0, 5) == []
    assert ids(seek.since(LOG, tmp_path, 0.0, 1)) == ["a-0"]


def test_an_event_that_stands_behind_a_slightly_later_one_is_found(tmp_path: Path) -> None:
    folder = spool_of(tmp_path, "a", 1000, segments=1)
    for first, times in ((5, (2000.0, 1999.5, 1999.6)), (8, (1999.9, 3000.0))):
        active = ActiveSegment(folder.path / "active-1.db")
        active.write(first, [encode_event(turn(f"t-{at}", finished_at=at)) for at in times])
        active.seal()
    assert ids(seek.since(LOG, tmp_path, 1999.9, 3)) == ["t-1999.9", "t-2000.0", "t-3000.0"]


def test_the_last_events_are_read_from_the_end(tmp_path: Path, opened: list[Path]) -> None:
    spool_of(tmp_path, "b", 1000)
    spool_of(tmp_path, "a", 2000)
    for i in range(20):
        spool_of(tmp_path, f"old-{i}", 100, segments=1)
    assert ids(seek.last(LOG, tmp_path, 3)) == ["a-61", "a-62", "a-63"], "the newest, not those of the last folder"
    assert len(opened) == 1
    assert ids(seek.last(LOG, tmp_path, 66)) == ["b-62", "b-63", *(f"a-{i}" for i in range(64))]
    assert len(opened) == 1 + 17
    assert len(seek.last(LOG, tmp_path, 10_000)) == 2 * 64 + 20 * 4


def test_what_says_no_time_stands_with_the_one_before_it(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "a")
    folder.path.mkdir()
    active = ActiveSegment(folder.path / "active-1.db")
    payloads = [
        encode_event(Lost("gone")),
        encode_event(turn("a", finished_at=50.0)),
        b"\xc1",
        encode_event(Lost("gone")),
    ]
    active.write(1, payloads)
    active.seal()
    folder.mark_closed()
    assert [record.sequence for record in seek.since(LOG, tmp_path, 40.0, 9)] == [2, 3, 4]
    assert [record.sequence for record in seek.last(LOG, tmp_path, 2)] == [3, 4]


def test_events_are_counted_by_kind_without_being_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.open(tmp_path)
    newer = turn("t", schema=99)
    spool.append_sync([turn("a"), turn("b"), accept("f", "a"), forget("s"), newer])
    spool.close()
    monkeypatch.setattr("ingest.log.decode_event", None)
    assert seek.count(LOG, tmp_path) == {"turn": 3, "feedback": 1, "erasure": 1}


def test_a_turn_is_found_by_the_lake_and_without_it(tmp_path: Path, opened: list[Path]) -> None:
    spools, lake = tmp_path / "spool", tmp_path / "lake"
    spool_of(spools, "a", 1000)
    assert ids(seek.turn(LOG, spools, lake, "a-37")) == ["a-37"]
    assert len(opened) == SEGMENTS, "nobody knows where it is"
    land(log=LOG, spool=spools, lake=lake)
    opened.clear()
    assert ids(seek.turn(LOG, spools, lake, "a-37")) == ["a-37"]
    assert len(opened) == 1
    for folder in folders(spools):
        for segment in folder.sealed():
            segment.path.unlink()
    with pytest.raises(LogError, match="the lake does"):
        seek.turn(LOG, spools, lake, "a-37")
    with pytest.raises(LogError, match="neither lake nor log"):
        seek.turn(LOG, spools, lake, "a-999")


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "everloop.toml").write_text('[everloop]\nhome = "here"\n')
    home = Home.at(tmp_path / "here").create()
    (home.run / "ports.json").write_bytes(msgspec.json.encode(Addresses(ports={"kafka": 1})))
    spool_of(home.spool, "a", 1000)

    def log(*words: str):
        done = CliRunner().invoke(app, ["log", *words, "--config", str(tmp_path / "everloop.toml")])
        assert done.exit_code == 0, done.output
        return done.stdout

    lines = [json.loads(line) for line in log("tail", "-n", "2").splitlines()]
    assert [line["event"]["turn_id"] for line in lines] == ["a-62", "a-63"]
    [found] = json.loads(log("seek", "--turn", "a-5", "--json"))
    assert (found["spool_id"], found["sequence"], found["event"]["output_ids"]) == ("a", 6, [0, 1, 2, 3])
    assert json.loads(log("seek", "--spool", "a", "--sequence", "6", "-n", "1")) == found
    for time in ("1005", "1970-01-01T00:16:45+00:00"):
        assert json.loads(log("seek", "--time", time, "-n", "1")) == found
    assert json.loads(log("count", "--json")) == {"turn": 64}


@pytest.mark.parametrize("words", [(), ("--turn", "t", "--time", "1"), ("--time", "yesterday"), ("--sequence", "3")])
def test_wrong_usage_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["log", "seek", *words])
    assert done.exit_code == 2
    assert ("is no time" if "yesterday" in words else "name one of --turn, --time and --spool") in done.output
