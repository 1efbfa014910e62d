"""Landing from the embedded log: every event is in the lake exactly once, whoever is killed, however often it runs."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ingest.commits import Erasures, Table
from ingest.config import LogSettings
from ingest.contracts.arrays import pack_ids
from ingest.contracts.events import Record, encode_event
from ingest.embedded_log import EmbeddedLog, retain
from ingest.lake import ERASURES, FEEDBACK, REJECTS, SCHEMAS, TURNS, counts, landed, open_table, read
from ingest.land import append, land
from ingest.log import every, readable
from ingest.rows import sort
from ingest.spool import Spool, SpoolFolder, damages, low_watermark
from tests.lakes import thrice_at_once
from tests.log_events import accept, forget, turn

pytestmark = pytest.mark.integration

EMBEDDED = LogSettings()


def fill(root: Path, prefix: str, turns: int, segment_bytes: int = 64 << 20) -> str:
    """A closed spool of `turns` turns, each with its feedback."""
    spool = Spool.open(root, segment_bytes=segment_bytes)
    for at in range(0, turns, 50):
        names = [f"{prefix}-{i}" for i in range(at, min(at + 50, turns))]
        spool.append_sync([event for name in names for event in (turn(name), accept(f"f-{name}", name))])
    spool.close()
    return spool.spool_id


def ids(lake: Path, table: str = TURNS, column: str = "turn_id") -> list[str]:
    return sorted(read(lake, table).to_table(columns=[column])[column].to_pylist())


def test_land_twice_is_land_once(tmp_path: Path):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    first = fill(spool, "a", 120)
    report = land(log=EMBEDDED, spool=spool, lake=lake)
    assert report.rows == {TURNS: 120, FEEDBACK: 120, ERASURES: 0, REJECTS: 0}
    assert report.watermark > time.time() - 60
    assert sum(land(log=EMBEDDED, spool=spool, lake=lake).rows.values()) == 0

    second = fill(spool, "b", 30)
    assert land(log=EMBEDDED, spool=spool, lake=lake).rows[TURNS] == 30
    assert ids(lake) == sorted([f"a-{i}" for i in range(120)] + [f"b-{i}" for i in range(30)])
    assert ids(lake, FEEDBACK, "target_id") == ids(lake)
    assert landed(lake, [first, second, "unknown"]) == {first: 240, second: 60, "unknown": 0}


def test_many_spools_share_a_commit(tmp_path: Path):
    for i in range(5):
        fill(tmp_path / "spool", f"s{i}", 10)
    land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake")
    assert read(tmp_path / "lake", TURNS).count_rows() == 50
    assert len(open_table(tmp_path / "lake", TURNS).file_uris()) == 1


def test_erased_and_broken_events_do_not_land_as_rows(tmp_path: Path):
    spool = Spool.open(tmp_path / "spool")
    spool.append_sync([turn("a", subject="gone"), turn("b", weight_versions=()), turn("c"), forget("gone")])
    spool.close()
    report = land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake")
    assert (report.rows, report.erased) == ({TURNS: 1, FEEDBACK: 0, ERASURES: 2, REJECTS: 1}, 1)

    later = Spool.open(tmp_path / "spool")
    later.append_sync([turn("d", subject="gone"), accept("f", "c", subject="gone"), accept("g", "a", subject="")])
    later.close()
    report = land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake")
    assert (report.rows, report.erased) == ({TURNS: 0, FEEDBACK: 0, ERASURES: 1, REJECTS: 0}, 3)
    assert ids(tmp_path / "lake") == ["c"]


_LANDER = """
import sys
from pathlib import Path
from ingest import embedded_log, land
from ingest.config import LogSettings
embedded_log.BATCH_RECORDS = 40
append, steps = land.append, 0
def counted(table, *rest):
    global steps
    print(table.name, flush=True)
    return append(table, *rest)
land.append = counted
land.land(log=LogSettings(), spool=Path(sys.argv[1]), lake=Path(sys.argv[2]))
print("done", flush=True)
"""


def test_kill_9_at_every_step_and_the_next_run_lands_the_rest(tmp_path: Path):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    fill(spool, "a", 150, segment_bytes=5_000)
    fill(spool, "b", 150, segment_bytes=5_000)
    for steps in (2, 4, 7, 13):
        process = subprocess.Popen([sys.executable, "-c", _LANDER, spool, lake], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(steps):
            process.stdout.readline()
        process.kill()
        process.wait()
        process.stdout.close()
    land(log=EMBEDDED, spool=spool, lake=lake)
    expected = sorted(f"{prefix}-{i}" for prefix in "ab" for i in range(150))
    assert ids(lake) == expected
    assert ids(lake, FEEDBACK, "target_id") == expected


def test_two_landers_at_once_land_once(tmp_path: Path):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    for i in range(4):
        fill(spool, f"s{i}", 200, segment_bytes=5_000)
    for name in SCHEMAS:
        open_table(lake, name)
    thrice_at_once(lambda: land(log=EMBEDDED, spool=spool, lake=lake))
    expected = sorted(f"s{i}-{k}" for i in range(4) for k in range(200))
    assert ids(lake) == expected
    assert ids(lake, FEEDBACK, "target_id") == expected


def test_a_commit_through_an_old_snapshot_decides_again(tmp_path: Path):
    lake = tmp_path / "lake"
    old, new = Table(lake, TURNS), Table(lake, TURNS)
    erasures = Erasures(lake)
    rows = sort([Record("s", i, encode_event(turn(f"t{i}"))) for i in range(1, 6)], erasures.read(), 0.0).tables[TURNS]
    assert append(new, rows.slice(0, 3), {"s": 3}, erasures) == 3
    assert append(old, rows, {"s": 5}, erasures) == 2
    assert ids(lake) == [f"t{i}" for i in range(1, 6)]


def test_of_a_damaged_segment_all_that_is_whole_lands_and_the_rest_is_named(tmp_path: Path):
    spool_id = fill(tmp_path / "spool", "a", 200, segment_bytes=20_000)
    other = fill(tmp_path / "spool", "b", 10)
    folder = SpoolFolder(tmp_path / "spool" / spool_id)
    damaged = folder.sealed()[1].path
    image = bytearray(damaged.read_bytes())
    image[image.index(b"a-70")] ^= 1  # within a row
    damaged.write_bytes(image)
    gone = folder.sealed()[2]
    gone.path.write_bytes(b"\0" * 20_000)
    land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake")
    assert landed(tmp_path / "lake", [spool_id, other]) == {spool_id: 400, other: 20}
    lost = read(tmp_path / "lake", REJECTS).to_table(columns=["sequence"])["sequence"].to_pylist()
    assert sorted(lost) == [
        s for damage in damages(tmp_path / "spool") for a, b in damage.lost for s in range(a, b + 1)
    ]
    assert set(range(gone.first, gone.last + 1)) <= set(lost)
    assert len(lost) <= gone.last - gone.first + 1 + 20
    assert counts(tmp_path / "lake")[TURNS] + counts(tmp_path / "lake")[FEEDBACK] + len(lost) == 420


def test_retain_removes_only_what_is_landed_and_old(tmp_path: Path):
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    first, second = fill(spool, "a", 10), fill(spool, "b", 10)
    later = time.time() + 60
    assert retain(spool, {}, later) == 0
    land(log=EMBEDDED, spool=spool, lake=lake)
    have = landed(lake, [first, second])
    assert retain(spool, have, time.time() - 60) == 0
    assert retain(spool, {first: have[first]}, later) == 1
    assert not (spool / first).exists()
    assert (spool / second).exists()


def test_events_are_shown_as_json(tmp_path: Path):
    import json

    spool = Spool.open(tmp_path)
    spool.append_sync([turn("a"), accept("f", "a")])
    spool.close()
    first, second = json.loads(json.dumps([readable(record) for record in every(EMBEDDED, tmp_path)]))
    assert first["event"]["output_ids"] == [0, 1, 2, 3]
    assert (second["sequence"], second["event"]["target_id"]) == (2, "a")


def test_the_report_is_as_complete_as_the_oldest_living_spool(tmp_path: Path):
    idle, busy = Spool.open(tmp_path / "spool"), Spool.open(tmp_path / "spool", segment_seconds=3600)
    busy.append_sync([turn("not sealed yet")])
    before = low_watermark(tmp_path / "spool")
    report = land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake")
    assert report.rows[TURNS] == 0
    assert report.watermark <= before
    busy.close()
    idle.close()
    assert land(log=EMBEDDED, spool=tmp_path / "spool", lake=tmp_path / "lake").rows[TURNS] == 1
    assert EmbeddedLog(tmp_path / "spool").watermark() == 0, "unknown before the pass"


def test_turns_of_a_session_that_land_together_cost_what_the_longest_of_them_does(tmp_path: Path):
    """50 turns whose prompt grows to 50,000 tokens, two sessions in turns: 10 MB of ids, of which 0.4 MB are not
    repetitions."""
    spool, lake = Spool.open(tmp_path / "spool"), tmp_path / "lake"
    source = random.Random(1)
    ids = {name: pack_ids([source.randrange(49152) for _ in range(50_000)]) for name in "ab"}
    for length in range(1000, 51_000, 1000):
        spool.append_sync([turn(f"{n}-{length}", session=n, prompt_ids=ids[n][: 4 * length]) for n in "ab"])
    spool.close()
    land(log=EMBEDDED, spool=tmp_path / "spool", lake=lake)
    for path in (lake / TURNS).glob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        prompts = columns["prompt_ids"]
        assert prompts.total_uncompressed_size > 10_000_000
        assert prompts.total_compressed_size < 800_000
    open_table(lake, TURNS).delete("session_id = 'a'")
    left = read(lake, TURNS).to_table(columns=["turn_id", "prompt_ids"]).to_pylist()
    assert all(row["prompt_ids"] == ids["b"][: len(row["prompt_ids"])] for row in left)
    assert len(left) == 50
