"""Spool folders seen from outside: which there are, which are alive, what they have sealed.

A folder whose lock can be had belongs to a dead process: `adopt` recovers its active segments, seals them and
marks the folder closed. Everyone may adopt, for the lock lets only one do so at a time.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ingest.contracts.files import sync, write_atomically
from ingest.spool.damage import UNFINISHED, lacks_its_end, repair, seal_what_is_whole
from ingest.spool.errors import SegmentDamaged, SegmentUnavailable
from ingest.spool.segment import (
    ActiveSegment,
    SealedSegment,
    frames_taken,
    means_damage,
    read_segment,
    segment_at,
)

log = logging.getLogger(__name__)

LOCK, WATERMARK, CLOSED = "lock", "watermark", "closed"
SHIPPED, LOST, PARTITION = "shipped", "lost", "partition"
_UNFINISHED_SECONDS = 600.0
"""How old something unfinished must be to be what a crash left."""

STAMP_SLACK = 1.0
"""Seconds. Events are stamped shortly before they are appended; watermarks stay this far behind the clock."""


class SpoolFolder:
    """One spool's folder. Every method reads the disk: nothing is remembered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool_id = path.name

    def sealed(self, after: int = 0) -> list[SealedSegment]:
        """Sealed segments that end past `after`, in order."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                segment = segment_at(self.path / name)
                if segment is not None and segment.last > after:
                    found.append(segment)
        return sorted(found)

    def read(self, segment: SealedSegment, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """(sequence, payload) of a sealed segment past `after`, in order and without holes.

        What is damaged is repaired first: in the place of each row that is lost stands a `Lost` event. Raises
        `SegmentUnavailable`.
        """
        try:
            for sequence, payload in read_segment(segment.path, after):
                yield sequence, payload
                after = sequence
            return
        except SegmentDamaged as error:
            reason = str(error)
        repair(segment, reason)
        try:
            yield from read_segment(segment.path, after)
        except SegmentDamaged as error:
            raise SegmentUnavailable(f"{error}, right after it was repaired: is its disk failing?") from error

    def closed(self) -> bool:
        """Whether nothing will ever be added: all that it holds is sealed."""
        return (self.path / CLOSED).exists()

    def watermark(self) -> float:
        """Unix seconds: what was received up to then is in sealed segments. 0 where it is not known."""
        try:
            return float((self.path / WATERMARK).read_text())
        except (FileNotFoundError, ValueError):
            return 0.0

    def write_watermark(self, at: float) -> None:
        """Needs no fsync: a stale one only delays, and after a crash the folder is adopted."""
        self._note(WATERMARK, f"{at:.6f}")

    def _note(self, name: str, text: str) -> None:
        partial = self.path / f".{name}"
        partial.write_text(text)
        os.replace(partial, self.path / name)

    def mark_closed(self) -> None:
        """After its last segment was sealed."""
        (self.path / CLOSED).touch()
        sync(self.path)

    def remove_if_done(self) -> bool:
        """Removes the folder of a closed spool that holds nothing any more; hidden files are what a crash left."""
        try:
            names = os.listdir(self.path)
            hidden = [name for name in names if name.startswith(".")]
            if not self.closed() or set(names) - {*hidden, LOCK, WATERMARK, CLOSED, SHIPPED, LOST, PARTITION}:
                return False
            for name in (
                *hidden,
                WATERMARK,
                SHIPPED,
                LOST,
                PARTITION,
                LOCK,
                CLOSED,
            ):  # `closed` last: nobody adopts the rest
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
        except OSError:  # somebody else is removing it, or looked at its lock just now
            return False
        return True

    def shipped(self) -> int:
        """The last sequence that the forwarder had acknowledged before it removed segments."""
        try:
            return int((self.path / SHIPPED).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def write_shipped(self, sequence: int) -> None:
        """Before the segments up to there are removed. Needs no fsync: after a stale one, more is sent again."""
        self._note(SHIPPED, str(sequence))

    def open_lost(self) -> TextIO:
        """The sequences that were shipped as lost, one a line: no broker has their events. Who has it open reads them
        even once the folder is removed."""
        return (self.path / LOST).open("a+")

    def note_lost(self, sequence: int) -> None:
        """Before it counts as shipped. Needs no fsync: who waits for it has no other life than this machine's."""
        with (self.path / LOST).open("a") as file:
            file.write(f"{sequence}\n")

    def partition(self) -> int | None:
        """The partition of the topic that it goes to; None where it goes to none yet."""
        try:
            return int((self.path / PARTITION).read_text())
        except FileNotFoundError:
            return None

    def write_partition(self, partition: int) -> None:
        """Before anything of it is sent."""
        write_atomically(self.path / PARTITION, str(partition).encode())

    def size(self) -> int:
        """Bytes of its files."""
        total = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
        return total


def take_lock(folder: Path) -> int | None:
    """An open descriptor that holds the folder's lock; None where a living process has it, or it is gone."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def folders(root: Path) -> Iterator[SpoolFolder]:
    """Every spool below `root`, by id."""
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield SpoolFolder(path)


def seal(segment: ActiveSegment) -> None:
    """Seals it, or what is whole of it. Raises `OSError` or `sqlite3.Error` where that cannot be done now."""
    try:
        segment.seal()
    except sqlite3.Error as error:
        if not means_damage(error):
            raise
        seal_what_is_whole(segment.path, str(error))
        segment.close()


def _seal_remains(folder: SpoolFolder) -> None:
    """Seals, in order, what a dead writer left active. The caller holds the lock."""
    for path in sorted(folder.path.glob("active-*.db")):
        try:
            with frames_taken(path) as frames:
                if lacks_its_end(path, frames):
                    seal_what_is_whole(path, "a transaction in its write-ahead log is damaged")
                    continue
            segment = ActiveSegment(path)
        except sqlite3.Error as error:
            if not means_damage(error):
                raise
            seal_what_is_whole(path, str(error))
        else:
            seal(segment)
    folder.mark_closed()


def adopt(root: Path) -> list[str]:
    """Closes every dead spool below `root`; returns the ids of those that it closed now."""
    _sweep(root)
    adopted = []
    for folder in folders(root):
        if folder.closed() or (fd := take_lock(folder.path)) is None:
            continue
        try:
            if not folder.closed():
                _seal_remains(folder)
                adopted.append(folder.spool_id)
                log.info("spool %s adopted: its process is gone", folder.spool_id)
        except (OSError, sqlite3.Error) as error:
            log.error("spool %s cannot be adopted now: %s", folder.spool_id, error)
        finally:
            os.close(fd)
    return adopted


def _sweep(root: Path) -> None:
    """Removes what crashes left half made: spools that were never opened, segments that were never put in place."""
    for path in [*root.glob(f"{UNFINISHED}*"), *root.glob(f"*/{UNFINISHED}*")]:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > time.time() - _UNFINISHED_SECONDS:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def low_watermark(root: Path, now: float | None = None) -> float:
    """Unix seconds: whatever any spool below `root` received up to then is in sealed segments.

    Ask first and read the segments after. Dead spools hold it back until they are adopted.
    """
    now = time.time() if now is None else now
    return min([now - STAMP_SLACK, *(f.watermark() for f in folders(root) if not f.closed())])
