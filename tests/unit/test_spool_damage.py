"""Damaged segments: no damage passes for a row or for the lack of one, and all that is whole goes on."""

import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from ingest.contracts.errors import ContractError
from ingest.contracts.events import decode_event
from ingest.embedded_log import EmbeddedLog, retain
from ingest.spool import SealedSegment, SegmentDamaged, Spool, SpoolFolder, adopt, damages, folders, read_segment
from ingest.spool.salvage import salvage
from ingest.spool.segment import PAGE_BYTES, ActiveSegment
from tests.log_events import turn

ROWS = 60


def payload(sequence: int) -> bytes:
    """Of all lengths: some share a page, some take five."""
    return random.Random(sequence).randbytes([30, 700, 6000, 70_000, 2000][sequence % 5])


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> SealedSegment:
    """A segment of the sequences 1 to ROWS."""
    active = ActiveSegment(tmp_path_factory.mktemp("spool") / "active-1.db")
    for at in range(1, ROWS + 1, 20):
        active.write(at, [payload(sequence) for sequence in range(at, at + 20)])
    segment = active.seal()
    assert segment is not None
    return segment


def copy(segment: SealedSegment, root: Path) -> tuple[SpoolFolder, SealedSegment]:
    folder = SpoolFolder(root / "spool-a")
    folder.path.mkdir()
    shutil.copy(segment.path, folder.path)
    folder.mark_closed()
    [found] = folder.sealed()
    return folder, found


def flip(path: Path, at: int, bit: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def is_lost(event: bytes) -> bool:
    try:
        decode_event(event)
    except ContractError as error:
        return "damaged" in str(error)
    return False


def rows_of_page(image: bytes, at: int) -> set[int]:
    """The rows that have a byte in the page of this offset, as the undamaged file has them."""
    page = at // PAGE_BYTES * PAGE_BYTES
    blank = image[:page] + bytes(PAGE_BYTES) + image[page + PAGE_BYTES :]
    return salvage(image).rows.keys() - salvage(blank).rows.keys()


def test_rows_without_damage_need_no_repair(sealed: SealedSegment):
    expected = {at: payload(at) for at in range(1, ROWS + 1)}
    assert dict(read_segment(sealed.path)) == expected
    assert list(read_segment(sealed.path, after=57)) == [(at, payload(at)) for at in (58, 59, 60)]
    assert salvage(sealed.path.read_bytes()).rows == expected


def test_a_flipped_byte_anywhere_costs_at_most_the_rows_of_its_page(sealed: SealedSegment, tmp_path: Path):
    image, chance = sealed.path.read_bytes(), random.Random(7)
    headers = [page * PAGE_BYTES + offset for page in range(len(image) // PAGE_BYTES) for offset in (0, 3, 4, 5, 9)]
    offsets = [*chance.sample(range(100), 20), *chance.sample(headers, 40)]
    offsets += [chance.randrange(len(image)) for _ in range(60)]
    damaged = 0
    for index, at in enumerate(offsets):
        root = tmp_path / str(index)
        root.mkdir()
        folder, segment = copy(sealed, root)
        flip(segment.path, at, 1 << chance.randrange(8))
        found = list(folder.read(segment))
        assert [sequence for sequence, _ in found] == list(range(1, ROWS + 1)), f"a hole, or a row twice: byte {at}"
        lost = {sequence for sequence, event in found if event != payload(sequence)}
        assert all(is_lost(event) for sequence, event in found if sequence in lost), f"accepted as it is: byte {at}"
        assert not lost or lost <= rows_of_page(image, at), f"byte {at} costs rows that it did not touch"
        accounts = damages(root)
        assert {s for account in accounts for a, b in account.lost for s in range(a, b + 1)} == lost
        assert list(read_segment(segment.path)) == found, "what was repaired is as it was given"
        damaged += bool(accounts)
        shutil.rmtree(root)
    assert damaged > 60


def test_a_row_that_vanished_is_seen_before_the_next_is_given(sealed: SealedSegment, tmp_path: Path):
    folder, segment = copy(sealed, tmp_path)
    with sqlite3.connect(segment.path) as connection:
        connection.execute("DELETE FROM events WHERE sequence = 30")
    connection.close()
    rows = read_segment(segment.path)
    assert [next(rows)[0] for _ in range(29)] == list(range(1, 30))
    with pytest.raises(SegmentDamaged):
        next(rows)
    assert [sequence for sequence, event in folder.read(segment) if is_lost(event)] == [30]


def test_what_is_no_database_at_all_is_counted_and_holds_up_nobody(sealed: SealedSegment, tmp_path: Path):
    _, segment = copy(sealed, tmp_path)
    segment.path.write_bytes(b"not a database, and long enough to be looked at as one" * 400)
    given = [record for batch in EmbeddedLog(tmp_path).batches(lambda _: 0) for record in batch]
    assert [record.sequence for record in given] == list(range(1, ROWS + 1))
    assert all(is_lost(record.payload) for record in given)
    [account] = damages(tmp_path)
    assert (account.spool_id, account.whole, account.lost_rows, account.lost) == ("spool-a", 0, ROWS, [(1, ROWS)])
    assert retain(tmp_path, {"spool-a": ROWS}, older_than=time.time() + 1) == 1
    assert list(folders(tmp_path)) == [], "a damaged spool goes when it has landed"
    assert len(damages(tmp_path)) == 1, "its account stays"


def test_segments_of_before_there_were_checksums_are_read_and_salvaged(tmp_path: Path):
    folder = SpoolFolder(tmp_path / "spool-a")
    folder.path.mkdir()
    path = folder.path / f"{1:016d}-{ROWS:016d}.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL)")
        for at in range(1, ROWS + 1):
            connection.execute("INSERT INTO events VALUES (?, ?)", (at, payload(at)))
    connection.close()
    [segment] = folder.sealed()
    assert dict(folder.read(segment)) == {at: payload(at) for at in range(1, ROWS + 1)}
    flip(path, 0)  # SQLite refuses it now
    assert dict(folder.read(segment)) == {at: payload(at) for at in range(1, ROWS + 1)}


def dead_spool(root: Path) -> Path:
    """The active segment of a process that died with 40 acknowledged events in four transactions."""
    spool = Spool.open(root, segment_seconds=3600)
    for at in range(0, 40, 10):
        spool.append_sync([turn(f"t{i}", request=payload(2).hex()) for i in range(at, at + 10)])
    dead = root / "dead"
    dead.mkdir()
    for path in spool.folder.path.glob("active-*1.db*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, dead)
    spool.close()
    shutil.rmtree(spool.folder.path)
    return dead


@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.7, 0.95])
def test_a_damaged_write_ahead_log_costs_the_rows_that_were_hit_and_not_all_after(tmp_path: Path, part: float):
    dead = dead_spool(tmp_path)
    [log] = dead.glob("*-wal")
    flip(log, int(log.stat().st_size * part))
    assert adopt(tmp_path) == ["dead"]
    folder = SpoolFolder(dead)
    found = [row for segment in folder.sealed() for row in folder.read(segment)]
    assert [sequence for sequence, _ in found] == list(range(1, 41))
    lost = sum(is_lost(event) for _, event in found)
    assert lost <= 2, "a page's rows"
    [account] = damages(tmp_path)
    assert account.lost_rows == lost
    assert not list(dead.glob("active-*"))


def test_an_active_segment_of_which_nothing_can_be_had_is_kept_beside_and_its_spool_goes(tmp_path: Path):
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "active-0000000000000001.db").write_bytes(b"neither is this one" * 400)
    assert adopt(tmp_path) == ["dead"]
    assert [(account.spool_id, account.whole, account.lost) for account in damages(tmp_path)] == [("dead", 0, [])]
    assert retain(tmp_path, {}, older_than=0.0) == 0
    assert list(folders(tmp_path)) == []
    kept = tmp_path / ".damaged" / "dead-active-0000000000000001.db"
    assert kept.exists()
    retain(tmp_path, {}, older_than=time.time() + 1)
    assert not kept.exists()


def test_sequences_whose_commit_failed_are_no_hole(tmp_path: Path):
    active = ActiveSegment(tmp_path / "active-1.db")
    active.write(5, [b"five"])
    active.write(8, [b"eight"])
    segment = active.seal()
    assert segment is not None
    found = dict(read_segment(segment.path))
    assert (list(found), found[5], found[8]) == ([5, 6, 7, 8], b"five", b"eight")
    with pytest.raises(ContractError, match="its commit failed"):
        decode_event(found[6])


def test_what_crashes_left_half_made_is_removed_and_what_is_being_made_is_not(tmp_path: Path):
    old, new = tmp_path / ".new-a", tmp_path / ".new-b"
    for path in (old, new):
        path.mkdir()
        (path / "lock").touch()
    spool = Spool.open(tmp_path)
    spool.close()
    part = spool.folder.path / ".new-c.db"
    part.touch()
    for path in (old, part):
        os.utime(path, (1.0, 1.0))
    adopt(tmp_path)
    assert not old.exists()
    assert not part.exists()
    assert new.exists()
