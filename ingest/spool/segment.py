"""One segment: a SQLite file with a table `events(sequence, crc, payload)`.

While active it has a write-ahead log beside it and each commit is an fsync. Sealing moves the log into the
file, turns it back into a single file, and renames it to its range. A sealed segment is opened read-only and
immutable: no lock, no `-shm`, by any user.

Each row has a checksum (CRC-32C) of its sequence and its payload, and a segment has every sequence from its first to
its last. Whoever reads it checks both, so that no damage passes for a row, or for the lack of one. Segments of before
0.1 lack the column; they are read as SQLite gives them.
"""

import ctypes
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from ingest.contracts.events import Lost, encode_event
from ingest.contracts.files import sync
from ingest.spool.errors import SegmentDamaged, SegmentUnavailable

PAGE_BYTES = 16384
"""SQLite's page size, of every segment: turns of 6 kB cost a fifth less processor time than with 4 kB."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS events (sequence INTEGER PRIMARY KEY, crc INTEGER NOT NULL, payload BLOB NOT NULL)"
)
_SEALED = re.compile(r"(\d{16})-(\d{16})\.db")
_INSERT_ROWS = 64
"""Rows of one INSERT: each statement hands Python's lock to another thread and waits for it."""
_INSERT_BYTES = 1 << 20
"""Or fewer, of large ones: SQLite copies them."""
_READ_ROWS = 256
_STEP_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None)
_WRITE_AND_WAIT = 7
"""Flags of Linux' sync_file_range: before, during and after."""
_NOT_NOW = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT}
_NOT_NOW |= {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM}
_NOT_NOW |= {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}
"""Errors that say nothing of what the file holds."""


class SealedSegment(NamedTuple):
    """A sealed segment by its name: first and last sequence, and where it is."""

    first: int
    last: int
    path: Path


def segment_at(path: Path) -> SealedSegment | None:
    """The sealed segment that `path` names; None where it names something else."""
    match = _SEALED.fullmatch(path.name)
    return SealedSegment(int(match[1]), int(match[2]), path) if match else None


def checksum(sequence: int, payload: bytes) -> int:
    """What stands beside a row."""
    return crc32c(payload, crc32c(sequence.to_bytes(8, "little")))


def means_damage(error: sqlite3.Error) -> bool:
    """Whether the error speaks of the file's bytes, and not of the disk, a lock or a right."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _NOT_NOW


@contextmanager
def frames_taken(path: Path) -> Iterator[int]:
    """While it is open: how many frames of the write-ahead log of an active segment SQLite takes for whole."""
    with closing(_connect(path)) as connection:
        yield connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _sync_in_steps(path: Path) -> None:
    """fsync, a piece at a time: commits to the next segment would wait for all of this one, written at once."""
    with path.open("rb") as file:
        for at in range(0, os.fstat(file.fileno()).st_size, _STEP_BYTES):
            _LIBC.sync_file_range(file.fileno(), ctypes.c_int64(at), ctypes.c_int64(_STEP_BYTES), _WRITE_AND_WAIT)
        os.fsync(file.fileno())


class ActiveSegment:
    """The segment being written. Used by one thread at a time; not by another process while its lock is held."""

    def __init__(self, path: Path, durable: bool = True) -> None:
        """Opens or creates `path`; what a dead writer left in its write-ahead log is recovered.

        `durable`: whether a commit outlives the machine, and not only the process.
        """
        self.path = path
        self._durable = durable
        self.bytes = 0
        self._last = 0
        self._range: tuple[int, int] | None = None
        made = not path.exists()
        self._connection = _connect(path)
        try:
            synchronous = f"synchronous={'FULL' if durable else 'OFF'}"
            pragmas = ("journal_mode=WAL", synchronous, "secure_delete=ON", "wal_autocheckpoint=0")
            for pragma in (f"page_size={PAGE_BYTES}", *pragmas):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute(_SCHEMA)
            if durable:
                sync(path.parent)
        except (sqlite3.Error, OSError):
            self._connection.close()
            for part in path.parent.glob(f"{path.name}*") if made else ():
                part.unlink()  # nobody knows of it, and its spool would never be done
            raise

    def write(self, first: int, payloads: Sequence[bytes]) -> None:
        """Commits `payloads` as sequences `first`, `first + 1`, …. Raises `sqlite3.Error`.

        Sequences that were passed over, for their commit failed, are written as lost: a segment has no holes.
        """
        if self._last and first > self._last + 1:
            never = encode_event(Lost("its commit failed: nobody was told that it is recorded"))
            payloads = [never] * (first - self._last - 1) + list(payloads)
            first = self._last + 1
        size = sum(map(len, payloads))
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            rows = max(1, min(_INSERT_ROWS, _INSERT_BYTES * len(payloads) // size)) if size else _INSERT_ROWS
            for at in range(0, len(payloads), rows):
                chunk = payloads[at : at + rows]
                values: list[int | bytes] = []
                for sequence, payload in enumerate(chunk, first + at):
                    values += (sequence, checksum(sequence, payload), payload)
                connection.execute(f"INSERT INTO events VALUES {','.join(['(?,?,?)'] * len(chunk))}", values)
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._last = first + len(payloads) - 1
        self.bytes += size

    def seal(self) -> SealedSegment | None:
        """Makes it a single immutable file named by its range; an empty one is removed (None).

        After an error it may be called again.
        """
        if self._range is None:
            connection = self._connection
            first, last = connection.execute("SELECT min(sequence), max(sequence) FROM events").fetchone()
            if self._durable:
                connection.execute("PRAGMA synchronous=OFF")
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                _sync_in_steps(self.path)
                connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.close()
            self._range = first or 0, last or 0
        first, last = self._range
        if not first:
            self.path.unlink()
            return None
        sealed = self.path.with_name(f"{first:016d}-{last:016d}.db")
        os.replace(self.path, sealed)
        if self._durable:
            sync(sealed.parent)
        return SealedSegment(first, last, sealed)

    def close(self) -> None:
        """Lets go of the file as it is."""
        self._connection.close()


def read_segment(path: Path, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(sequence, payload) of a sealed segment past `after`, in order, each as it was written.

    Raises `SegmentDamaged` or `SegmentUnavailable`, also in mid-way: before the row that it cannot vouch for.
    """
    segment = segment_at(path)
    assert segment is not None, "only sealed segments are read"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(events)")]
            if columns == ["sequence", "crc", "payload"]:
                yield from _checked(connection, segment, after)
            elif columns == ["sequence", "payload"]:
                query = "SELECT sequence, payload FROM events WHERE sequence > ? ORDER BY sequence"
                yield from connection.execute(query, (after,))
            else:
                raise SegmentDamaged(f"{path} has no table of events")
    except sqlite3.Error as error:
        if means_damage(error):
            raise SegmentDamaged(f"{path} is damaged: {error}") from error
        raise SegmentUnavailable(f"{path} cannot be read now: {error}") from error


def _checked(connection: sqlite3.Connection, segment: SealedSegment, after: int) -> Iterator[tuple[int, bytes]]:
    # All rows, and not those past `after`: the way down the tree to the first of them is damaged unseen.
    cursor = connection.execute("SELECT sequence, crc, payload FROM events ORDER BY sequence")
    expected = segment.first
    while rows := cursor.fetchmany(_READ_ROWS):
        for sequence, crc, payload in rows:
            if sequence != expected or type(payload) is not bytes or crc != checksum(sequence, payload):
                raise SegmentDamaged(f"{segment.path} is damaged at sequence {expected}")
            expected += 1
            if sequence > after:
                yield sequence, payload
    if expected != segment.last + 1:
        raise SegmentDamaged(f"{segment.path} is damaged: it ends before sequence {expected}")
