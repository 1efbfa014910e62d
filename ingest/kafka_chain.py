"""What a reader of a topic gives on, drops, and waits for: pure.

A topic may differ from the spools in four ways: the same event twice (a forwarder was killed before it noted the
acknowledgement), an event before its predecessor (one batch failed, the next did not), an event in several records, and
less than the whole (retention).

- at or below what was seen of its spool: dropped;
- its predecessor was not seen: not given, and its partition's saved offset stays here until a later pass finds the hole
  filled; the spool's watermark waits as well;
- a part of an event: waits for the others, and the saved offset stays at the first of them;
- the first of its spool in a partition whose head retention removed: given, for nothing older is left, and what is
  missing before it is counted as lost.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ingest.kafka_topic import EventPlace


class Chain:
    """Which records of which spools were seen: pure, and the whole of the deduplication."""

    def __init__(self, after: Callable[[str], int]) -> None:
        self._after = after
        self._seen: dict[str, int] = {}
        self.waiting: set[str] = set()
        """Spools of which something is still to come."""
        self.lost = 0
        """Events before a removed head that were never landed."""

    def seen(self, spool_id: str) -> int:
        """The last sequence of the spool that was given, in this pass or before."""
        return self._seen[spool_id] if spool_id in self._seen else self._after(spool_id)

    def take(self, spool_id: str, place: EventPlace, headless: bool) -> bool | None:
        """True: new; False: seen before; None: it came too early. `headless`: the partition's head is gone."""
        first = spool_id not in self._seen
        if first:  # the lake is asked once a spool: it takes as long as hundreds of records
            self._seen[spool_id] = self._after(spool_id)
        seen = self._seen[spool_id]
        if place.sequence <= seen:
            return False
        if place.previous > seen and not (first and headless):
            self.waiting.add(spool_id)
            return None
        self.lost += max(0, place.previous - seen)
        self.waiting.discard(spool_id)
        self._seen[spool_id] = place.sequence
        return True


class _Unfinished(msgspec.Struct):
    """An event of which parts are missing: where its first one stands, and those that came."""

    partition: int
    offset: int
    values: dict[int, bytes] = {}


class Parts:
    """Events that come in parts, as far as they have come, in whatever order: pure."""

    def __init__(self) -> None:
        self._open: dict[str, dict[tuple[int, int], _Unfinished]] = {}

    def join(self, spool_id: str, place: EventPlace, message: Any) -> tuple[bytes, int] | None:
        """The whole event and the offset where it began, once no part is missing."""
        found = self._open.setdefault(spool_id, {})
        event = found.setdefault((place.sequence, place.parts), _Unfinished(message.partition, message.offset))
        event.values[place.part] = message.value
        if len(event.values) < place.parts:
            return None
        del found[place.sequence, place.parts]
        return b"".join(event.values[part] for part in range(place.parts)), event.offset

    def forget(self, spool_id: str, upto: int) -> None:
        """Nothing of the spool up to this sequence is still to be given."""
        left = {key: event for key, event in self._open.pop(spool_id, {}).items() if key[0] > upto}
        if left:
            self._open[spool_id] = left

    def needed(self, partition: int) -> list[int]:
        """The offsets of the partition where unfinished events begin."""
        events = (event for found in self._open.values() for event in found.values())
        return [event.offset for event in events if event.partition == partition]
