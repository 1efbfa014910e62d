"""One spool's way to the topic: what of it was sent, what is acknowledged, and what that lets go of. It never waits.

Segments go in order. Events are sent as long as few enough bytes are under way; when the last of a segment is
acknowledged, that is noted (`shipped`) and the segment unlinked; after the last segment, the spool's watermark goes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ingest.contracts.events import is_lost
from ingest.kafka_topic import EventPlace, Headers, Watermark, event_headers, partition_of, split, watermark_headers
from ingest.spool import SealedSegment, SpoolFolder

_WATERMARK_SECONDS = 1.0
"""A watermark is published only when it has moved by this much."""

Send = Callable[[str, int, bytes, Headers], Any]
"""(spool id, partition, value, headers) → the future of its acknowledgement. May raise `KafkaError`: nothing was sent.
"""


class _Sent(NamedTuple):
    sequence: int
    """0: a watermark."""
    size: int
    future: Any


class Shipment:
    """How far one spool is. `take`, `fill` and `collect` in turns; after an error of any of them `rewind`."""

    def __init__(self, folder: SpoolFolder, partitions: int) -> None:
        """`partitions`: of the topic. A spool stays in its partition when there are more later. Raises `OSError`."""
        self.folder = folder
        kept = folder.partition()
        self.partition = kept if kept is not None and kept < partitions else partition_of(folder.spool_id, partitions)
        if kept != self.partition:
            folder.write_partition(self.partition)
        self.acknowledged = folder.shipped()
        self.finished = 0
        """Segments that the topic has all of."""
        self.done = False
        """Whether the folder is gone, for the topic has all of it."""
        self._published = 0.0
        self.rewind()

    def rewind(self) -> None:
        """Forgets what was sent and not acknowledged: it is sent again."""
        self._waiting: deque[_Sent] = deque()
        self._under_way = 0
        self._segments: deque[SealedSegment] = deque()
        self._rows: Iterator[tuple[int, bytes]] | None = None
        self._mark: Watermark | None = None
        self._sent = self.acknowledged

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, nor known to be still to be sent."""
        return not self._waiting and not self._segments and self._mark is None

    def look(self) -> None:
        """Takes up what is sealed by now. Only while it is idle."""
        mark = Watermark(self.folder.watermark(), self.folder.closed())  # asked before its segments are listed
        self._segments = deque(self.folder.sealed())
        if self._published == float("inf") and not self._segments:
            self.done = self.folder.remove_if_done()
        elif mark.closed or mark.at >= self._published + _WATERMARK_SECONDS:
            self._mark = mark

    def fill(self, send: Send, limit: int, bytes_under_way: int) -> bool:
        """Sends as much as may be under way; tells whether it sent anything.

        `limit`: the largest record. Raises `KafkaError`, `OSError` or `SegmentUnavailable`.
        """
        sent = False
        while self._segments and self._under_way < bytes_under_way:
            following = self.following()
            if following is None:
                break
            sequence, payload = following
            for value, headers in self.records(limit, sequence, payload):
                future = send(self.folder.spool_id, self.partition, value, headers)
                self._waiting.append(_Sent(sequence, len(value), future))
                self._under_way += len(value)
            self._sent = sequence
            sent = True
        if not self._segments and self._mark is not None and not self._waiting:
            future = send(self.folder.spool_id, self.partition, b"", watermark_headers(self._mark))
            self._waiting.append(_Sent(0, 0, future))
            return True
        return sent

    def following(self) -> tuple[int, bytes] | None:
        """The next event of the first segment; None where all of it was sent. Raises `SegmentUnavailable`."""
        if not self._segments:
            return None
        if self._rows is None:
            self._rows = self.folder.read(self._segments[0], self._sent)
        found = next(self._rows, None)
        if found is not None and is_lost(found[1]):
            self.folder.note_lost(found[0])
        return found

    def records(self, limit: int, sequence: int, payload: bytes) -> list[tuple[bytes, Headers]]:
        """The event that follows what was sent, as records of at most `limit` bytes."""
        parts = split(payload, limit)
        return [
            (value, event_headers(EventPlace(sequence, self._sent, part, len(parts))))
            for part, value in enumerate(parts)
        ]

    def pass_by(self, sequence: int) -> None:
        """The event that followed is on the topic, or what stands for it; somebody else sent it."""
        self._sent = self.acknowledged = sequence

    def collect(self) -> bool:
        """Takes what was acknowledged; tells whether anything was. Raises `KafkaError` or `OSError`."""
        progress = False
        while self._waiting and self._waiting[0].future.is_done:
            sent = self._waiting[0]
            if sent.future.failed():
                raise sent.future.exception
            self._waiting.popleft()
            self._under_way -= sent.size
            progress = True
            if sent.sequence == 0:
                self._publish()
            elif not self._waiting or self._waiting[0].sequence != sent.sequence:
                self.acknowledged = sent.sequence
        while self._segments and self.acknowledged >= self._segments[0].last:
            self.folder.write_shipped(self.acknowledged)
            self._segments.popleft().path.unlink(missing_ok=True)
            self._rows = None
            self.finished += 1
            progress = True
        return progress

    def _publish(self) -> None:
        assert self._mark is not None, "a watermark was sent"
        self._published = float("inf") if self._mark.closed else self._mark.at
        self.done = self._mark.closed and self.folder.remove_if_done()
        self._mark = None
