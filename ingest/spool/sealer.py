"""The second thread of a spool: it seals what is full and prepares the next segment, so that no append waits for that.

Segments are sealed in the order in which they were filled. One that cannot be sealed now (a full disk) holds
back later ones and the watermark, and is tried again at the next occasion.
"""

import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ingest.spool.folder import STAMP_SLACK, SpoolFolder, seal
from ingest.spool.room import Room
from ingest.spool.segment import ActiveSegment

log = logging.getLogger(__name__)


class Sealer:
    """Called by the writer thread; what it promises happens on its own."""

    def __init__(self, folder: SpoolFolder, room: Room, durable: bool) -> None:
        self._folder = folder
        self._room = room
        self._durable = durable
        self._full: deque[ActiveSegment] = deque()
        self._ordinal = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool-sealer")
        self._spare = self._thread.submit(self._create)

    def exchange(self, full: ActiveSegment | None, drained_at: float) -> ActiveSegment:
        """The spare, for a full segment (None at the start) that will be sealed.

        All that was appended up to `drained_at` is in `full` or before. Raises `sqlite3.Error` or `OSError` where there
        is no spare; then `full` stays in use.
        """
        try:
            spare = self._spare.result()
        finally:
            self._spare = self._thread.submit(self._create)
        if full is not None:
            self._later(self._seal, full, drained_at)
        return spare

    def tidy(self, drained_at: float) -> None:
        """While nothing is unsealed but what waits here: moves the watermark and counts bytes."""
        self._later(self._tidy, drained_at)

    def finish(self, active: ActiveSegment, drained_at: float) -> None:
        """Seals everything and marks the folder closed; returns when done.

        Where something cannot be sealed the folder stays open, and whoever adopts it tries again.
        """
        self._later(self._finish, active, drained_at)
        self._thread.shutdown(wait=True)

    def _later(self, task: Callable[..., None], *arguments: Any) -> None:
        self._thread.submit(task, *arguments).add_done_callback(self._report)

    def _report(self, done: Future) -> None:
        if (error := done.exception()) is not None:
            log.error("spool %s cannot be kept tidy now: %s: %s", self._folder.spool_id, type(error).__name__, error)

    def _create(self) -> ActiveSegment:
        self._ordinal += 1
        return ActiveSegment(self._folder.path / f"active-{self._ordinal:016d}.db", self._durable)

    def _seal(self, segment: ActiveSegment, drained_at: float) -> None:
        self._full.append(segment)
        self._tidy(drained_at)

    def _tidy(self, drained_at: float) -> None:
        if self._seal_all():
            self._folder.write_watermark(drained_at - STAMP_SLACK)
        self._room.count()

    def _seal_all(self) -> bool:
        while self._full:
            segment = self._full[0]
            try:
                seal(segment)
            except (sqlite3.Error, OSError) as error:
                log.error("spool %s: %s cannot be sealed now: %s", self._folder.spool_id, segment.path.name, error)
                return False
            self._full.popleft()
        return True

    def _finish(self, active: ActiveSegment, drained_at: float) -> None:
        self._full.append(active)
        if self._spare.exception() is None:
            self._full.append(self._spare.result())
        if self._seal_all():
            self._folder.write_watermark(drained_at - STAMP_SLACK)
            self._folder.mark_closed()
