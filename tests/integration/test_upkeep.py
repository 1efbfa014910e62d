"""Upkeep: the lake stays small, what is pinned stays readable, what was erased is in no file."""

import threading
import time
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from ingest import commits
from ingest import land as landing
from ingest.commits import commit, outlive, refresh
from ingest.config import LakeSettings, LogSettings
from ingest.lake import FEEDBACK, REJECTS, SCHEMAS, TURNS, open_table, read
from ingest.land import land
from ingest.spool import Spool, folders
from ingest.upkeep import upkeep, upkeep_if_due
from tests.lakes import mentions
from tests.log_events import accept, turn

pytestmark = pytest.mark.integration

DAY = 86400.0
NEVER = LakeSettings(upkeep_seconds=1e9)


def filled(root: Path, batches: int = 12, **fields) -> Path:
    """A lake with a file a batch in its tables, and no upkeep yet."""
    lake = root / "lake"
    open_table(lake, TURNS).alter.set_table_properties(
        {"everloop.lookedAfterAt": str(time.time())}, raise_if_not_exists=False
    )
    for i in range(batches):
        spool = Spool.open(root / "spool")
        name = f"turn-{i}"
        spool.append_sync([turn(name, **fields), accept(f"feedback-{i}", name, subject=fields.get("subject", "s"))])
        spool.close()
        land(log=LogSettings(), spool=root / "spool", lake=lake, settings=NEVER)
    return lake


def files(lake: Path, name: str) -> int:
    return len(list((lake / name).glob("*.parquet")))


def names(lake: Path, version: int | None = None) -> list[str]:
    return sorted(read(lake, TURNS, version).to_table(columns=["turn_id"])["turn_id"].to_pylist())


def manifest(datasets: Path, cut_at: float, versions: dict[str, int], name: str = "manifest.json") -> None:
    folder = datasets / "policy" / f"d-{cut_at}-{name}"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(msgspec.json.encode({"cut_at": cut_at, "lake_versions": versions, "more": 1}))


def test_a_damaged_file_keeps_no_other_table_from_being_looked_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = filled(tmp_path)
    next((lake / FEEDBACK).glob("*.parquet")).write_bytes(b"PAR1 and no more")
    upkeep(lake, LakeSettings(), time.time())
    [said] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "table feedback is not looked after" in said.getMessage()
    assert len(open_table(lake, TURNS).file_uris()) == 1


def age(lake: Path, days: float) -> None:
    """As if everything in the lake had been written so long ago: upkeep goes by the time of each removal."""
    import os

    for path in lake.rglob("*"):
        os.utime(path, (time.time() - days * DAY,) * 2)


def test_small_files_become_one_and_old_ones_go_after_their_grace(tmp_path: Path):
    lake = filled(tmp_path)
    before = names(lake)
    upkeep(lake, LakeSettings(), time.time())
    assert names(lake) == before
    assert len(open_table(lake, TURNS).file_uris()) == 1
    assert files(lake, TURNS) == 13, "a reader that began before still finds its files"
    table = open_table(lake, TURNS)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert files(lake, TURNS) == 1
    upkeep(lake, LakeSettings(), time.time())
    assert names(lake) == before


def test_two_upkeeps_at_once_leave_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = filled(tmp_path)
    before = names(lake)
    real = DeltaTable.create_write_transaction
    inner = []

    def commit(table, *rest, **named):
        if not inner:
            inner.append(True)
            upkeep(lake, LakeSettings(), time.time())  # another one does all of it right here
        real(table, *rest, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
    upkeep(lake, LakeSettings(), time.time())
    assert inner
    assert names(lake) == before
    assert read(lake, FEEDBACK).count_rows() == 12


def test_versions_of_datasets_stay_while_they_may_be_frozen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake, datasets, now = filled(tmp_path), tmp_path / "datasets", time.time()
    versions = {name: open_table(lake, name).version() for name in SCHEMAS}
    early = {**versions, TURNS: versions[TURNS] - 3}
    before, between = names(lake), names(lake, early[TURNS])
    manifest(datasets, now - 10 * DAY, versions)
    manifest(datasets, now - 20 * DAY, early, "candidate.json")
    vacuum = DeltaTable.vacuum

    def at_once(self, hours, **options):
        assert hours == 24
        return vacuum(self, 0, **options)

    monkeypatch.setattr(DeltaTable, "vacuum", at_once)
    upkeep(lake, LakeSettings(), now, datasets=datasets)
    assert (names(lake, versions[TURNS]), names(lake, early[TURNS])) == (before, between)
    assert names(lake) == before
    upkeep(lake, LakeSettings(reproducible_days=15), now, datasets=datasets)
    assert names(lake, versions[TURNS]) == before
    upkeep(lake, LakeSettings(reproducible_days=5), now, datasets=datasets)
    with pytest.raises(OSError, match="No such file"):
        names(lake, versions[TURNS])
    assert names(lake) == before


def test_after_an_erasure_no_file_of_the_lake_remembers(tmp_path: Path):
    lake = filled(tmp_path, subject="pseudonym-of-one", request='"what one wrote"')
    spool = Spool.open(tmp_path / "spool")
    broken = turn("broken-turn", subject="pseudonym-of-one", weight_versions=())
    spool.append_sync([turn("other"), accept("f-other", "other"), broken])
    spool.close()
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER)
    upkeep(lake, LakeSettings(), time.time())
    open_table(lake, TURNS).delete("subject = 'pseudonym-of-one'")
    open_table(lake, FEEDBACK).delete("subject = 'pseudonym-of-one'")
    open_table(lake, REJECTS).delete("sequence = 3")
    words = ("pseudonym-of-one", "what one wrote", "turn-1", "feedback-1", "broken-turn")
    assert mentions(lake, *words)
    upkeep(lake, LakeSettings(), time.time(), erase=True)
    assert mentions(lake, *words) == []
    assert names(lake) == ["other"]
    assert land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER).rows[TURNS] == 0


def test_no_statistic_in_the_log_names_anybody(tmp_path: Path):
    lake = filled(tmp_path, batches=1, subject="pseudonym-of-one", request='"what one wrote"')
    found = {name for name, _ in mentions(lake, "pseudonym-of-one", "what one wrote", "turn-0")}
    assert found
    assert not [name for name in found if "_delta_log" in name]
    actions = open_table(lake, TURNS).get_add_actions(flatten=True).column_names
    assert "min.finished_at" in actions, "numbers have theirs: a look at the newest turns opens few files"


def test_an_append_under_way_keeps_its_file_through_an_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The lander writes its file, the erasure clears files and log, the lander is refused and lands all the same."""
    lake = filled(tmp_path, batches=3)
    spool = Spool.open(tmp_path / "spool")
    spool.append_sync([turn("late")])
    spool.close()
    done = []
    real = commits.write_deltalake

    def write(table, *rest, **named):
        if table.table_uri.rstrip("/").endswith(TURNS) and not done:
            done.append(True)
            open_table(lake, TURNS).delete("turn_id = 'turn-1'")
            upkeep(lake, LakeSettings(), time.time(), erase=True)
        return real(table, *rest, **named)

    monkeypatch.setattr(commits, "write_deltalake", write)
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER)
    assert names(lake) == ["late", "turn-0", "turn-2"]


def test_a_commit_that_an_erasure_left_below_its_checkpoint_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A lander slept between its look and its commit, while the log was cleared: nobody reads what it wrote."""
    lake = filled(tmp_path, batches=1)
    spool = Spool.open(tmp_path / "spool")
    spool.append_sync([turn("late")])
    spool.close()
    real, lost = commits.write_deltalake, []

    def write(snapshot, rows, **named):
        if lost or not snapshot.table_uri.rstrip("/").endswith(TURNS):
            return real(snapshot, rows, **named)
        lost.append(snapshot.version())  # its commit goes nowhere
        open_table(lake, TURNS).alter.set_table_properties({"x.y": "1"}, raise_if_not_exists=False)
        upkeep(lake, LakeSettings(), time.time(), erase=True)

    monkeypatch.setattr(commits, "write_deltalake", write)
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER)
    assert lost
    assert names(lake) == ["late", "turn-0"]


def test_landers_and_upkeep_at_once_lose_nothing(tmp_path: Path):
    lake, root = tmp_path / "lake", tmp_path / "spool"
    for name in SCHEMAS:
        open_table(lake, name)
    stop, errors = threading.Event(), []

    def keeping() -> None:
        try:
            while not stop.is_set():
                upkeep(lake, LakeSettings(), time.time(), erase=len(errors) == 0 and files(lake, TURNS) % 3 == 0)
        except Exception as error:  # noqa: BLE001 - the test's own thread border
            errors.append(error)

    keeper = threading.Thread(target=keeping)
    keeper.start()
    for i in range(8):
        spool = Spool.open(root)
        spool.append_sync([turn(f"t{i}-{k}") for k in range(20)])
        spool.close()
        land(log=LogSettings(), spool=root, lake=lake, settings=NEVER)
    stop.set()
    keeper.join()
    assert errors == []
    assert names(lake) == sorted(f"t{i}-{k}" for i in range(8) for k in range(20))


def test_ids_of_dead_spools_expire_and_those_of_living_ones_do_not(tmp_path: Path):
    lake = tmp_path / "lake"
    table = open_table(lake, TURNS)
    long_ago = time.time() - 500 * DAY
    commit(table, SCHEMAS[TURNS].empty_table(), {"dead": 7, "living": 9}, time.time() - 300 * DAY)
    refresh(lake, ["living", "never landed"], time.time())
    commit(table, SCHEMAS[TURNS].empty_table(), {"dead": 7}, long_ago)
    table = open_table(lake, TURNS)
    assert table.transaction_version("dead") is None
    assert table.transaction_version("living") == 9
    table.create_checkpoint()
    table = open_table(lake, TURNS)
    assert (table.transaction_version("dead"), table.transaction_version("living")) == (None, 9)
    assert not mentions(lake / TURNS / "_delta_log", "never landed")


def test_ids_outlive_the_log_whatever_its_retention(tmp_path: Path):
    lake = tmp_path / "lake"
    outlive(lake, 7)
    assert open_table(lake, TURNS).version() == 0, "what is long enough stays as it is"
    outlive(lake, 1000)
    for name in (TURNS, FEEDBACK, REJECTS):
        kept = open_table(lake, name).metadata().configuration["delta.setTransactionRetentionDuration"]
        assert int(kept.split()[1]) > 1000 + 365
    commit(open_table(lake, TURNS), SCHEMAS[TURNS].empty_table(), {"s": 7}, time.time() - 1300 * DAY)
    assert open_table(lake, TURNS).transaction_version("s") == 7


def test_one_lander_looks_after_the_lake_when_it_is_due_and_remembers_living_spools(tmp_path: Path):
    lake, root, now = tmp_path / "lake", tmp_path / "spool", time.time()
    spool = Spool.open(root)
    spool.append_sync([turn("a")])
    spool.close()
    land(log=LogSettings(retention_days=1000), spool=root, lake=lake, settings=LakeSettings())
    [spool_id] = [folder.spool_id for folder in folders(root)]
    assert not upkeep_if_due(lake, LakeSettings(), now + 10, datasets=None, living=[])
    commit(open_table(lake, TURNS), SCHEMAS[TURNS].empty_table(), {spool_id: 1}, now - 2000 * DAY)
    assert open_table(lake, TURNS).transaction_version(spool_id) is None
    commit(open_table(lake, TURNS), SCHEMAS[TURNS].empty_table(), {spool_id: 1}, now - 1000 * DAY)
    assert upkeep_if_due(lake, LakeSettings(), now + 4000, datasets=None, living=[spool_id])
    assert not upkeep_if_due(lake, LakeSettings(), now + 4001, datasets=None, living=[spool_id])
    told = [line for path in (lake / TURNS / "_delta_log").glob("*.json") for line in path.read_text().splitlines()]
    last = max(msgspec.json.decode(line)["txn"]["lastUpdated"] for line in told if spool_id in line)
    assert last == pytest.approx((now + 4000) * 1000, abs=1)
    assert landing.landed(lake, [spool_id]) == {spool_id: 1}


def test_a_lander_whose_clock_is_days_off_neither_looks_after_the_lake_nor_keeps_others_from_it(tmp_path: Path):
    lake, now, often = filled(tmp_path, batches=8), time.time(), LakeSettings(upkeep_seconds=60)
    for off in (10 * DAY, -10 * DAY):
        assert not upkeep_if_due(lake, LakeSettings(), now + off, datasets=None, living=[])
        assert len(open_table(lake, TURNS).file_uris()) == 8
    assert not upkeep_if_due(lake, often, now, datasets=None, living=[]), "it was looked after just now"
    assert upkeep_if_due(lake, often, now + 100, datasets=None, living=[])
    assert len(open_table(lake, TURNS).file_uris()) == 1


def test_what_landed_with_a_clock_of_1970_does_not_land_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = filled(tmp_path, batches=1)
    spool = Spool.open(tmp_path / "spool")
    spool.append_sync([turn("late")])
    spool.close()
    with monkeypatch.context() as back:
        back.setattr(landing.time, "time", lambda: 60.0)
        land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER)
    land(log=LogSettings(), spool=tmp_path / "spool", lake=lake, settings=NEVER)
    assert names(lake) == ["late", "turn-0"]
