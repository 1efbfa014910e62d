"""`Spool`: this process's own folder, written by one thread with group commit.

Appenders put their events into a queue; the writer thread takes all that is there, commits it in one transaction
(one fsync), and answers everybody: the more load, the more events share an fsync. What comes in one turn of the event
loop comes together; nothing waits on purpose.

A segment is full by size or by age; the writer then goes on in a spare that `sealer` has ready. `room` is the bound.
With `ack = "broker"` segments are sealed at once, and who was committed waits in `shipped` until the broker has it;
the disk is then a buffer that outlives the process, and nothing waits for an fsync.
"""

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

from ingest.contracts.events import Event, encode_event
from ingest.spool.errors import BrokerBehind, CommitTimeout, SpoolClosed, SpoolError, SpoolFull
from ingest.spool.folder import STAMP_SLACK, SpoolFolder, take_lock
from ingest.spool.room import Room
from ingest.spool.sealer import Sealer
from ingest.spool.shipped import SEGMENT_SECONDS, Shipped

log = logging.getLogger(__name__)

_TICK = 0.5
"""Seconds between looks at the clock while idle: segment age, watermark."""
_SCAN = 2.0
"""Seconds between two movements of the watermark, and counts of the bytes, while idle."""


class _Append:
    """Events that wait for their fsync, and who waits for them."""

    __slots__ = ("committed", "future", "loop", "payloads", "sequences", "size", "taken", "withdrawn")

    def __init__(self, payloads: list[bytes], loop: asyncio.AbstractEventLoop | None) -> None:
        self.payloads = payloads
        self.size = sum(map(len, payloads))
        self.loop = loop
        self.future: Future | asyncio.Future = Future() if loop is None else loop.create_future()
        self.sequences: list[int] = []
        self.taken = self.withdrawn = False
        """Whether the writer has it, or whoever waited went away before; one of them at most."""
        self.committed = False


def _answer(appends: list[_Append], error: SpoolError | None) -> None:
    for append in appends:
        if append.future.done():
            continue
        if error is None:
            append.future.set_result(append.sequences)
        else:
            append.future.set_exception(error)


class Spool:
    """Durable, bounded, append-only. Open with `Spool.open`; close it in the process that opened it."""

    def __init__(
        self,
        folder: SpoolFolder,
        lock: int,
        segment_bytes: int,
        segment_seconds: float,
        max_bytes: int,
        ack: Literal["disk", "broker"],
    ) -> None:
        self.spool_id = folder.spool_id
        self.folder = folder
        self._lock_fd = lock
        self._segment_bytes = segment_bytes
        self._shipped = Shipped(folder) if ack == "broker" else None
        self._segment_seconds = min(segment_seconds, SEGMENT_SECONDS) if self._shipped else segment_seconds

        self._waiting: list[_Append] = []
        """What waits for the writer."""
        self._calls: SimpleQueue[None] = SimpleQueue()
        """Wakes the writer: at the end of the turn of an event loop in which something was appended."""
        self._lock = threading.Lock()
        """Between appenders, who wait no longer, and the writer: held for moments."""
        self._closing = False
        self._next = 1
        self._tidied_at = time.monotonic()
        self._drained_at = time.time()
        self._room = Room(folder.path.parent, max_bytes)
        self._sealer = Sealer(folder, self._room, durable=self._shipped is None)
        self._active = self._sealer.exchange(None, self._drained_at)
        self.folder.write_watermark(self._drained_at - STAMP_SLACK)
        self._writer = threading.Thread(target=self._run, name="spool-writer", daemon=True)

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        segment_bytes: int = 64 << 20,
        segment_seconds: float = 2.0,
        max_bytes: int = 16 << 30,
        ack: Literal["disk", "broker"] = "disk",
    ) -> "Spool":
        """A new spool below `root`. `max_bytes` bounds all the spools there together; `ack`: what an append waits for.

        Raises `SpoolError`.
        """
        spool_id = uuid.uuid4().hex
        hidden, path = root / f".new-{spool_id}", root / spool_id
        try:
            hidden.mkdir(parents=True, mode=0o700)
            lock = take_lock(hidden)
            assert lock is not None, "nobody else knows this folder"
            os.rename(hidden, path)
            spool = cls(SpoolFolder(path), lock, segment_bytes, segment_seconds, max_bytes, ack)
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"no spool can be opened below {root}: {error}; name a writable local disk") from error
        spool._writer.start()
        return spool

    @property
    def root(self) -> Path:
        """The folder of all the spools here."""
        return self.folder.path.parent

    @property
    def depth(self) -> int:
        """Bytes in all the spools below the root that wait to be shipped or removed; may lag by two seconds."""
        return self._room.used

    @property
    def bound(self) -> int:
        """Bytes that all the spools below the root may hold together."""
        return self._room.max_bytes

    @property
    def room(self) -> int:
        """Bytes left, under the bound and on the disk."""
        return self._room.left

    @property
    def behind(self) -> bool:
        """Whether the broker is waited for in vain; never with `ack = "disk"`."""
        return self._shipped is not None and self._shipped.behind

    async def append(self, events: Sequence[Event], timeout: float) -> list[int]:
        """The events' sequences, after fsync, or after the broker's acknowledgement where that counts.

        Raises `SpoolFull`, `SpoolClosed`, `SpoolError`, `CommitTimeout`, `BrokerBehind`. Cancelling takes nothing back.
        """
        loop = asyncio.get_running_loop()
        append = self._enqueue(events, loop)
        timer = loop.call_later(timeout, self._expire, append, timeout)
        try:
            return await append.future  # type: ignore[misc]
        finally:
            timer.cancel()

    def append_sync(self, events: Sequence[Event], timeout: float = 30.0) -> list[int]:
        """`append` for a thread without an event loop."""
        append = self._enqueue(events, None)
        try:
            return append.future.result(timeout)  # type: ignore[call-arg]
        except TimeoutError:
            raise self._timed_out(append, timeout) from None

    def close(self) -> None:
        """Commits what is queued, seals, marks the folder closed, and lets go of the lock."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake()
        self._writer.join()
        if self._shipped is not None:
            self._shipped.close()
        os.close(self._lock_fd)

    # -- appenders

    def _enqueue(self, events: Sequence[Event], loop: asyncio.AbstractEventLoop | None) -> _Append:
        append = _Append([encode_event(event) for event in events], loop)
        with self._lock:
            if self._closing:
                raise SpoolClosed(f"spool {self.spool_id} is closed")
            self._room.take(append.size)
            self._waiting.append(append)
            if loop is None:
                self._wake()
            elif len(self._waiting) == 1:
                loop.call_soon(self._wake)
        return append

    def _wake(self) -> None:
        self._calls.put(None)

    def _expire(self, append: _Append, timeout: float) -> None:
        if not append.future.done():
            append.future.set_exception(self._timed_out(append, timeout))

    def _timed_out(self, append: _Append, timeout: float) -> CommitTimeout:
        with self._lock:
            withdrawn = append.withdrawn = not append.taken
            if withdrawn:
                self._room.give_back(append.size)
        if append.committed and self._shipped is not None:
            self._shipped.behind = True
            return self._behind()
        return CommitTimeout(
            f"no fsync within {timeout} s in {self.folder.path}: the disk is slow or stuck",
            recorded=False if withdrawn else None,
        )

    def _behind(self) -> BrokerBehind:
        return BrokerBehind(
            f"{self.folder.path} holds the events, and the broker does not acknowledge them now: is it up, and the "
            "forwarder? They are shipped when it is",
            recorded=None,
        )

    # -- the writer thread

    def _run(self) -> None:
        try:
            self._write_until_closed()
        finally:  # empty unless a bug ended the thread: then nobody waits for it in vain
            with self._lock:
                self._closing = True
                left = self._drain()
            self._answer_all(left, SpoolClosed(f"the writer of spool {self.spool_id} has ended"))

    def _write_until_closed(self) -> None:
        started: float | None = None  # when the active segment got its first event
        while True:
            batch, closing = self._take(_TICK if started is None else min(_TICK, self._segment_seconds))
            now = time.monotonic()
            if batch:
                self._commit(batch)
                started = now if started is None else started
            if started is None:
                if not closing and now - self._tidied_at >= min(_SCAN, self._segment_seconds):
                    self._tidied_at = now
                    self._sealer.tidy(self._drained_at)
            elif (
                closing or self._active.bytes >= self._segment_bytes or now - started >= self._segment_seconds
            ) and self._roll():
                started = None
            if closing:
                self._sealer.finish(self._active, self._drained_at)
                return

    def _take(self, tick: float) -> tuple[list[_Append], bool]:
        """All that waits, or nothing after a tick; and whether nothing comes after it."""
        with contextlib.suppress(Empty):
            self._calls.get(timeout=tick)
        with self._lock:
            self._drained_at = time.time()
            return self._drain(), self._closing

    def _drain(self) -> list[_Append]:
        taken = [append for append in self._waiting if not append.withdrawn]
        self._waiting = []
        for append in taken:
            append.taken = True
        return taken

    def _commit(self, batch: list[_Append]) -> None:
        payloads: list[bytes] = []
        for append in batch:
            first = self._next + len(payloads)
            append.sequences = list(range(first, first + len(append.payloads)))
            payloads += append.payloads
        error: SpoolError | None = None
        try:
            self._active.write(self._next, payloads)
        except (sqlite3.Error, OSError) as cause:
            error = self._refusal(cause)
            log.error("spool %s: %d events were not committed: %s", self.spool_id, len(payloads), cause)
        # A commit that failed may have reached the disk: its sequences are not used again.
        self._next += len(payloads)
        if error is not None or self._shipped is None:
            self._answer_all(batch, error)
        else:
            self._answer_when_shipped(batch, self._shipped)
        if error is not None:
            self._roll()

    def _answer_when_shipped(self, batch: list[_Append], shipped: Shipped) -> None:
        for append in batch:
            append.payloads, append.committed = [], True
        if shipped.behind:  # nobody waits for what another waited for in vain
            self._answer_all(batch, self._behind())
            shipped.when(self._next - 1, lambda lost: None)
        else:
            shipped.when(self._next - 1, lambda lost: self._answer_shipped(batch, lost))

    def _answer_shipped(self, batch: list[_Append], lost: set[int]) -> None:
        self._answer_all([append for append in batch if lost.isdisjoint(append.sequences)], None)
        without = [append for append in batch if not lost.isdisjoint(append.sequences)]
        where = self.folder.path.parent
        error = (
            f"the broker has not got it: it was damaged on the disk, or refused; see .damaged and .refused in {where}"
        )
        self._answer_all(without, SpoolError(error))

    def _answer_all(self, batch: list[_Append], error: SpoolError | None) -> None:
        loops: dict[asyncio.AbstractEventLoop | None, list[_Append]] = {}
        for append in batch:
            loops.setdefault(append.loop, []).append(append)
        for loop, appends in loops.items():
            if loop is None:
                _answer(appends, error)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(_answer, appends, error)

    def _refusal(self, cause: Exception) -> SpoolError:
        full = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or (
            isinstance(cause, OSError) and cause.errno == errno.ENOSPC
        )
        kind = SpoolFull if full else SpoolError
        return kind(f"the commit failed in {self.folder.path}: {cause}; nothing was acknowledged")

    def _roll(self) -> bool:
        """Goes on in the spare and has the full segment sealed; False where there is no spare yet."""
        try:
            self._active = self._sealer.exchange(self._active, self._drained_at)
        except (sqlite3.Error, OSError) as error:
            log.error("spool %s: no new segment can be made: %s", self.spool_id, error)
            return False
        return True
