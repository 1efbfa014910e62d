"""One segment: a SQLite file with a table `events(sequence, payload)`.

While active it has a write-ahead log beside it and each commit is an fsync. Sealing moves the log into the
file, turns it back into a single file, and renames it to its range. A sealed segment is opened read-only and
immutable: no lock, no `-shm`, by any user.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ingest.contracts.files import sync
from ingest.spool.errors import SegmentDamaged, SegmentUnavailable

_SCHEMA = "CREATE TABLE IF NOT EXISTS events (sequence INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL)"
_READ_ROWS = 256


class SealedSegment(NamedTuple):
    """A sealed segment by its name: first and last sequence, and where it is."""

    first: int
    last: int
    path: Path


class ActiveSegment:
    """The segment being written. Used by one thread at a time; not by another process while its lock is held."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`; what a dead writer left in its write-ahead log is recovered."""
        self.path = path
        self.bytes = 0
        self._range: tuple[int, int] | None = None
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "wal_autocheckpoint=0"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error:
            self._connection.close()
            raise
        sync(path.parent)

    def write(self, first: int, payloads: Sequence[bytes]) -> None:
        """Commits `payloads` as sequences `first`, `first + 1`, …; durable on return. Raises `sqlite3.Error`."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("INSERT INTO events VALUES (?, ?)", enumerate(payloads, first))
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self.bytes += sum(map(len, payloads))

    def seal(self) -> SealedSegment | None:
        """Makes it a single immutable file named by its range; an empty one is removed (None).

        After an error it may be called again.
        """
        if self._range is None:
            connection = self._connection
            first, last = connection.execute("SELECT min(sequence), max(sequence) FROM events").fetchone()
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
        sync(sealed.parent)
        return SealedSegment(first, last, sealed)

    def close(self) -> None:
        """Lets go of the file as it is."""
        self._connection.close()


def read_segment(path: Path, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(sequence, payload) of a sealed segment past `after`, in order.

    Raises `SegmentDamaged` or `SegmentUnavailable`, also in mid-way.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone():
                raise SegmentDamaged(f"{path} has no table of events")
            cursor = connection.execute(
                "SELECT sequence, payload FROM events WHERE sequence > ? ORDER BY sequence", (after,)
            )
            while rows := cursor.fetchmany(_READ_ROWS):
                yield from rows
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        raise SegmentUnavailable(f"{path} cannot be read now: {error}") from error
    except sqlite3.DatabaseError as error:
        raise SegmentDamaged(f"{path} is damaged: {error}") from error
