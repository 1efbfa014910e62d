"""What becomes of a segment that is damaged: what is whole goes on, what is not is named, and nobody waits for it.

A damaged sealed segment is replaced, at once and under its own name, by one of the same range: the rows that are whole,
and for each that is not a `Lost` event, which lands among the rejects. So later readers need not know of damage, and
nothing has a hole. An active segment that SQLite cannot read, or not to its end, is sealed in the same way.

`<root>/.damaged/` keeps the account: `<spool id>-<file>.json` says how many rows were lost and which. Where nothing at
all could be had of a file, it stands there, too, until it is as old as the log's retention.
"""

import itertools
import logging
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ingest.contracts.events import Lost, encode_event
from ingest.contracts.files import sync, write_atomically
from ingest.spool.errors import SegmentUnavailable
from ingest.spool.salvage import Salvage, cut_off, overlay, salvage
from ingest.spool.segment import ActiveSegment, SealedSegment, segment_at

log = logging.getLogger(__name__)

FOLDER = ".damaged"
UNFINISHED = ".new-"
"""How the name of a file begins that is not complete yet: a crash leaves it, and nobody reads it."""
_ROWS = 2000


class Damage(msgspec.Struct, frozen=True):
    """The account of one damaged file. `lost`: ranges of sequences, both ends included; empty where none is known."""

    spool_id: str
    file: str
    reason: str
    whole: int
    """Rows that go on."""
    lost: list[tuple[int, int]]
    at: float

    @property
    def lost_rows(self) -> int:
        """How many sequences are lost."""
        return sum(last - first + 1 for first, last in self.lost)


def damages(root: Path) -> list[Damage]:
    """Every account below `root`."""
    found = sorted((root / FOLDER).glob("*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=Damage) for path in found]


def let_go(root: Path, older_than: float) -> None:
    """Removes the damaged files that are older (Unix seconds); their accounts stay."""
    for path in (root / FOLDER).glob("*.db*"):
        if path.suffix != ".json" and path.stat().st_mtime < older_than:
            path.unlink()


def rewrite(segment: SealedSegment, payloads: Iterable[bytes]) -> None:
    """Puts a segment of the same range in its place: `payloads` are those of its first sequence, the next, and so on.

    Atomic: who reads it now reads the old one to its end. Raises `OSError` or `sqlite3.Error`.
    """
    fresh = ActiveSegment(segment.path.with_name(f"{UNFINISHED}{uuid.uuid4().hex}.db"))
    rows, at = iter(payloads), segment.first
    while chunk := list(itertools.islice(rows, _ROWS)):
        fresh.write(at, chunk)
        at += len(chunk)
    assert at == segment.last + 1, "a segment has all its sequences"
    fresh.seal()


def repair(segment: SealedSegment, reason: str) -> None:
    """Replaces a damaged segment. Raises `SegmentUnavailable` where it cannot be read or replaced now."""
    try:
        found = salvage(segment.path.read_bytes())
        rows = {at: payload for at, payload in found.rows.items() if segment.first <= at <= segment.last}
        _replace(segment, rows, reason)
    except (OSError, sqlite3.Error) as error:
        raise SegmentUnavailable(f"{segment.path} is damaged and cannot be repaired now: {error}") from error


def seal_what_is_whole(path: Path, reason: str) -> None:
    """Seals what can be had of an active segment, its write-ahead log included, and removes it.

    The caller holds the spool's lock. Raises `OSError` or `sqlite3.Error`.
    """
    beside = path.with_name(f"{path.name}-wal")
    found = salvage(overlay(path.read_bytes(), beside.read_bytes() if beside.exists() else b""))
    sealed = [segment.last for other in path.parent.iterdir() if (segment := segment_at(other))]
    if found.rows and max(found.rows) not in sealed:  # else a crash came between its sealing and its removal
        sequences = {*found.rows, *_plausible(found)}
        first, last = max(sealed, default=min(sequences) - 1) + 1, max(sequences)
        name = f"{first:016d}-{last:016d}.db"
        _replace(SealedSegment(first, last, path.with_name(name)), found.rows, reason)
    elif not found.rows:
        _account(Damage(path.parent.name, path.name, reason, 0, [], time.time()), path)
        for part in path.parent.glob(f"{path.name}*"):
            shutil.copy(part, path.parent.parent / FOLDER / f"{path.parent.name}-{part.name}")
    for part in [*path.parent.glob(f"{path.name}-*"), path]:
        part.unlink()
    sync(path.parent)


def lacks_its_end(path: Path, frames: int) -> bool:
    """Whether a write-ahead log holds transactions after the `frames` that SQLite takes: one in between is damaged."""
    beside = path.with_name(f"{path.name}-wal")
    return beside.exists() and cut_off(beside.read_bytes(), frames)


def _plausible(found: Salvage) -> set[int]:
    """Damaged sequences that may stand at either end of the whole ones; a damaged number may be any."""
    first, last, most = min(found.rows), max(found.rows), len(found.damaged)
    return {sequence for sequence in found.damaged if first - most <= sequence <= last + most}


def _replace(segment: SealedSegment, rows: dict[int, bytes], reason: str) -> None:
    lost = [at for at in range(segment.first, segment.last + 1) if at not in rows]
    damage = Damage(segment.path.parent.name, segment.path.name, reason, len(rows), list(_ranges(lost)), time.time())
    _account(damage, segment.path)
    gone = encode_event(Lost("its bytes were damaged in the spool"))
    rewrite(segment, (rows.get(at, gone) for at in range(segment.first, segment.last + 1)))


def _account(damage: Damage, path: Path) -> None:
    """Before the damaged file is replaced: it cannot be told again afterwards."""
    folder = path.parent.parent / FOLDER
    folder.mkdir(exist_ok=True, mode=0o700)
    write_atomically(folder / f"{damage.spool_id}-{damage.file}.json", msgspec.json.encode(damage))
    log.error(
        "spool %s: %s is damaged (%s): %d rows are whole and go on, %s are lost: sequences %s",
        damage.spool_id,
        damage.file,
        damage.reason,
        damage.whole,
        damage.lost_rows if damage.whole or damage.lost else "none can be had and all",
        ", ".join(f"{first} to {last}" for first, last in damage.lost) or "not known",
    )


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as ranges, both ends included."""
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], found[-1]
