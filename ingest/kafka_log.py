"""The log on Kafka: a pass from the saved offsets to where the topic ended when the pass began.

Offsets only bound what is read again; which events are new is decided by (spool id, sequence). A topic may differ from
the spools in four ways: the same event twice (a forwarder was killed before it noted the acknowledgement), an event
before its predecessor (one batch failed, the next did not), an event in several records, and less than the whole
(retention).

- at or below what was seen of its spool: dropped;
- its predecessor was not seen: not given, and its partition's saved offset stays here until a later pass finds the hole
  filled; the spool's watermark waits as well;
- a part of an event: waits for the others, and the saved offset stays at the first of them;
- the first of its spool in a partition whose head retention removed: given, for nothing older is left.

Progress (offsets, watermarks) is a file beside the lake, saved once a batch is safe. Without it all is read again.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from ingest.config import LogSettings
from ingest.contracts.events import Record
from ingest.contracts.files import write_atomically
from ingest.kafka_topic import EventPlace, Watermark, parse_headers
from ingest.log import BATCH_BYTES, BATCH_RECORDS, LogError

logger = logging.getLogger(__name__)

_POLL_MS = 1000
_SILENT_POLLS = 60
"""Empty polls in a row, before the end, after which the broker counts as gone."""


class Progress(msgspec.Struct):
    """How far a lake has read a topic: the next offset of each partition, the newest watermark of each spool."""

    topic: str
    offsets: dict[int, int] = {}
    watermarks: dict[str, tuple[float, bool]] = {}


class Chain:
    """Which records of which spools were seen: pure, and the whole of the deduplication."""

    def __init__(self, after: Callable[[str], int]) -> None:
        self._after = after
        self._seen: dict[str, int] = {}
        self.waiting: set[str] = set()
        """Spools of which something is still to come."""

    def seen(self, spool_id: str) -> int:
        """The last sequence of the spool that was given, in this pass or before."""
        return self._seen[spool_id] if spool_id in self._seen else self._after(spool_id)

    def take(self, spool_id: str, place: EventPlace, headless: bool) -> bool | None:
        """True: new; False: seen before; None: it came too early. `headless`: the partition's head is gone."""
        first = spool_id not in self._seen
        seen = self._seen.setdefault(spool_id, self._after(spool_id))
        if place.sequence <= seen:
            return False
        if place.previous > seen and not (first and headless):
            self.waiting.add(spool_id)
            return None
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


class KafkaLog:
    """A `LogReader` of a topic."""

    lost = 0

    def __init__(self, settings: LogSettings, lake: Path | None) -> None:
        progress = lake / "kafka-progress.json" if lake else None
        self._settings = settings
        self._file = progress
        self._progress = _load(settings.topic, progress)

    def batches(self, after: Callable[[str], int]) -> Iterator[list[Record]]:
        """See `LogReader`. Raises `LogError` where no broker answers or the topic does not exist."""
        try:
            consumer = KafkaConsumer(
                bootstrap_servers=self._settings.bootstrap.split(","),
                bootstrap_timeout_ms=10_000,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                max_poll_records=BATCH_RECORDS,
                fetch_max_bytes=BATCH_BYTES,
                max_partition_fetch_bytes=self._settings.max_record_bytes,
            )
        except KafkaError as error:
            raise LogError(f"no Kafka broker answers at {self._settings.bootstrap}: {error}") from error
        try:
            yield from self._read(consumer, Chain(after), Parts())
        except KafkaError as error:
            raise LogError(f"topic {self._settings.topic} cannot be read: {error}") from error
        finally:
            consumer.close()

    def watermark(self) -> float:
        """See `LogReader`; 0 where no forwarder has said anything. Lost spools hold nothing back."""
        marks = self._progress.watermarks.values()
        newest = max((at for at, _ in marks), default=0.0)
        living = [at for at, closed in marks if not closed and at > newest - self._settings.lost_after_seconds]
        return min(living, default=newest)

    def living(self) -> list[str]:
        """See `LogReader`."""
        return [spool_id for spool_id, (_, closed) in self._progress.watermarks.items() if not closed]

    def _read(self, consumer: KafkaConsumer, chain: Chain, parts: Parts) -> Iterator[list[Record]]:
        ends, headless = self._seek(consumer)
        held: dict[int, int] = {}
        silent = 0
        batch: list[Record] = []
        size = 0
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            polled = consumer.poll(timeout_ms=_POLL_MS)
            silent = 0 if polled else silent + 1
            if silent > _SILENT_POLLS:
                raise LogError(f"topic {self._settings.topic} gives no records before its end: is its broker up?")
            for partition, messages in polled.items():
                for message in messages:
                    record = self._take(message, chain, parts, partition.partition in headless, held)
                    if record is not None:
                        batch.append(record)
                        size += len(record.payload)
            if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
                self._save(consumer, ends, held, parts)
        if batch:
            yield batch
        if chain.waiting:
            logger.warning("%d spools on topic %s wait for an earlier record", len(chain.waiting), self._settings.topic)
        self._save(consumer, ends, held, parts)

    def _seek(self, consumer: KafkaConsumer) -> tuple[dict[TopicPartition, int], set[int]]:
        """Where each partition ends now, and the partitions whose next records retention has removed."""
        numbers = consumer.partitions_for_topic(self._settings.topic)
        if not numbers:
            raise LogError(f"Kafka has no topic {self._settings.topic}: start the forwarder, it makes one")
        partitions = [TopicPartition(self._settings.topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        headless = set()
        for partition in partitions:
            saved = self._progress.offsets.get(partition.partition, 0)
            if saved > ends[partition]:
                logger.warning("topic %s ends before what was read of it: it was made anew", self._settings.topic)
                saved = 0
            if saved < begins[partition]:
                headless.add(partition.partition)
            consumer.seek(partition, max(saved, begins[partition]))
        return ends, headless

    def _take(self, message: Any, chain: Chain, parts: Parts, headless: bool, held: dict[int, int]) -> Record | None:
        place = parse_headers(message.headers)
        if place is None or message.key is None:
            logger.warning(
                "a record that no forwarder wrote: partition %d offset %d", message.partition, message.offset
            )
            return None
        spool_id = message.key.decode()
        if isinstance(place, Watermark):
            if spool_id not in chain.waiting:
                self._progress.watermarks[spool_id] = (place.at, place.closed)
            return None
        value, offset = message.value, message.offset
        if place.parts > 1 and place.sequence > chain.seen(spool_id):
            whole = parts.join(spool_id, place, message)
            if whole is None:
                return None
            value, offset = whole
        verdict = chain.take(spool_id, place, headless)
        if verdict is None:
            held[message.partition] = min(offset, held.get(message.partition, offset))
        if not verdict:
            return None
        parts.forget(spool_id, place.sequence)
        return Record(spool_id, place.sequence, value)

    def _save(
        self, consumer: KafkaConsumer, ends: dict[TopicPartition, int], held: dict[int, int], parts: Parts
    ) -> None:
        for partition in ends:
            number, position = partition.partition, consumer.position(partition)
            self._progress.offsets[number] = min(held.get(number, position), *parts.needed(number), position)
        newest = max((at for at, closed in self._progress.watermarks.values() if closed), default=0.0)
        for spool_id, (at, closed) in list(self._progress.watermarks.items()):
            if closed and at < newest:
                del self._progress.watermarks[spool_id]
        if self._file is not None:
            write_atomically(self._file, msgspec.json.encode(self._progress))


def _load(topic: str, file: Path | None) -> Progress:
    if file is None or not file.exists():
        return Progress(topic)
    try:
        saved = msgspec.json.decode(file.read_bytes(), type=Progress)
    except msgspec.MsgspecError as error:
        raise LogError(f"{file}: {error}; remove it, then the topic is read again from its start") from error
    return saved if saved.topic == topic else Progress(topic)
