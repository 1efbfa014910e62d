"""Finding one's way on a topic, for people (`ingest.seek`): reads from the offsets where the broker's index of times
points, or from the end backwards, and leaves no trace in the topic's group.

Records have the broker's time of arrival, which is later than the event's by what its spool waited.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from ingest.config import LogSettings
from ingest.contracts.events import Record
from ingest.kafka_chain import Parts
from ingest.kafka_topic import EventPlace, parse_headers, partition_of
from ingest.log import LogError
from ingest.seek import Dated, dated

_POLL_MS = 500
_SILENT_SECONDS = 60.0
"""No record before the end for so long: the broker counts as gone."""
_CLOCKS_APART = 600.0
"""Seconds by which a gateway's clock may be ahead of the broker's."""


class _Topic:
    """The topic as it was when looking began."""

    def __init__(self, settings: LogSettings, consumer: KafkaConsumer) -> None:
        numbers = consumer.partitions_for_topic(settings.topic)
        if not numbers:
            raise LogError(f"Kafka has no topic {settings.topic}: start the forwarder, it makes one")
        self._consumer, self._name = consumer, settings.topic
        self.partitions = [TopicPartition(settings.topic, number) for number in sorted(numbers)]
        self.begins = consumer.beginning_offsets(self.partitions)
        self.ends = consumer.end_offsets(self.partitions)

    def offsets_at(self, at: float) -> dict[TopicPartition, int]:
        """The first offset of each partition that arrived at `at` (Unix seconds) or later; its end where none did."""
        found = self._consumer.offsets_for_times({partition: int(at * 1000) for partition in self.partitions})
        return {partition: one.offset if one else self.ends[partition] for partition, one in found.items()}

    def read(self, partition: TopicPartition, start: int) -> Iterator[Record]:
        """Its events from an offset to its end, each once."""
        self._consumer.assign([partition])
        self._consumer.seek(partition, max(start, self.begins[partition]))
        parts = Parts()
        given: set[tuple[str, int]] = set()
        heard = time.monotonic()
        while self._consumer.position(partition) < self.ends[partition]:
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
            if polled:
                heard = time.monotonic()
            elif time.monotonic() > heard + _SILENT_SECONDS:
                raise LogError(f"topic {self._name} gives no records before its end: is its broker up?")
            for message in polled.get(partition, []):
                where = parse_headers(message.headers)
                if not isinstance(where, EventPlace) or message.key is None or message.offset >= self.ends[partition]:
                    continue
                spool_id, value = message.key.decode(), message.value
                if (spool_id, where.sequence) in given:
                    continue
                if where.parts > 1:
                    whole = parts.join(spool_id, where, message)
                    if whole is None:
                        continue
                    value = whole[0]
                given.add((spool_id, where.sequence))
                yield Record(spool_id, where.sequence, value)


@contextmanager
def _topic(settings: LogSettings) -> Iterator[_Topic]:
    try:
        consumer = KafkaConsumer(
            bootstrap_servers=settings.bootstrap.split(","),
            bootstrap_timeout_ms=10_000,
            group_id=None,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=settings.max_record_bytes,
        )
    except KafkaError as error:
        raise LogError(f"no Kafka broker answers at {settings.bootstrap}: {error}") from error
    try:
        yield _Topic(settings, consumer)
    except KafkaError as error:
        raise LogError(f"topic {settings.topic} cannot be read: {error}") from error
    finally:
        consumer.close(autocommit=False)


def last(settings: LogSettings, number: int) -> list[Record]:
    """See `ingest.seek.last`."""
    newest: list[Dated] = []
    with _topic(settings) as topic:
        for partition in topic.partitions:
            begin, start, back = topic.begins[partition], topic.ends[partition], number
            found: list[Record] = []
            while len(found) < number and start > begin:  # watermarks stand between the events
                start = max(begin, topic.ends[partition] - back)
                found, back = list(topic.read(partition, start)), back * 4
            newest = sorted([*newest, *dated(found)])[-number:]
    return [one.record for one in newest]


def since(settings: LogSettings, at: float, number: int) -> list[Record]:
    """See `ingest.seek.since`: what had arrived before is older, unless the clocks differ by more than ten minutes."""
    found: list[Dated] = []
    with _topic(settings) as topic:
        for partition, start in topic.offsets_at(at - _CLOCKS_APART).items():
            found += islice((one for one in dated(topic.read(partition, start)) if one.at >= at), number)
    return [one.record for one in sorted(found)[:number]]


def place(settings: LogSettings, spool_id: str, sequence: int, number: int, at: float = 0.0) -> list[Record]:
    """See `ingest.seek.place`. `at`: when the event was (Unix seconds), where that is known: no earlier one is read."""
    with _topic(settings) as topic:
        starts = topic.offsets_at(at - _CLOCKS_APART) if at else topic.begins
        likely = partition_of(spool_id, len(topic.partitions))
        # The others as well: a spool stays in its partition when the topic gets more of them.
        for partition in sorted(topic.partitions, key=lambda one: one.partition != likely):
            records = topic.read(partition, starts[partition])
            found = list(islice((r for r in records if r.spool_id == spool_id and r.sequence >= sequence), number))
            if found:
                return sorted(found, key=lambda record: record.sequence)
    raise LogError(f"topic {settings.topic} has nothing of spool {spool_id} from sequence {sequence} on")
