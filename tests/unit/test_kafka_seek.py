"""Where reading of a topic begins for people, and what of it they see: against a consumer that holds its messages."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from ingest import kafka_seek, seek
from ingest.config import LogSettings
from ingest.contracts.events import Record, encode_event
from ingest.kafka_topic import EventPlace, Watermark, event_headers, partition_of, split, watermark_headers
from ingest.log import LogError
from tests.log_events import turn

LOG = LogSettings(kind="kafka", topic="t")
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
SPOOL, OTHER = "s", "o"


class Consumer:
    """Two partitions; `starts` are the offsets that were sought."""

    def __init__(self) -> None:
        self.messages: dict[TopicPartition, list[SimpleNamespace]] = {FIRST: [], SECOND: []}
        self.removed = 0
        self.starts: list[tuple[int, int]] = []
        self._at: dict[TopicPartition, int] = {}

    def put(self, partition: TopicPartition, key: str, value: bytes, headers: list, at: float = 0.0) -> None:
        offset = len(self.messages[partition])
        self.messages[partition].append(
            SimpleNamespace(
                partition=partition.partition, offset=offset, key=key.encode(), value=value, headers=headers, at=at
            )
        )

    def event(self, partition: TopicPartition, key: str, sequence: int, at: float, parts: int = 1) -> None:
        """A turn that ended at `at`, and arrived then."""
        payload = encode_event(turn(f"{key}-{sequence}", finished_at=at))
        pieces = split(payload, -(-len(payload) // parts))
        for number, piece in enumerate(pieces):
            place = EventPlace(sequence, sequence - 1, number, len(pieces))
            self.put(partition, key, piece, event_headers(place), at)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1} if topic == "t" else None

    def beginning_offsets(self, partitions: list) -> dict[TopicPartition, int]:
        return {one: self.removed if one == FIRST else 0 for one in partitions}

    def end_offsets(self, partitions: list) -> dict[TopicPartition, int]:
        return {one: len(self.messages[one]) for one in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        found = {one: [m for m in self.messages[one] if m.at * 1000 >= at] for one, at in times.items()}
        return {one: messages[0] if messages else None for one, messages in found.items()}

    def assign(self, partitions: list) -> None:
        self._at = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._at[partition] = offset
        self.starts.append((partition.partition, offset))

    def position(self, partition: TopicPartition) -> int:
        return self._at[partition]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list]:
        [(partition, at)] = self._at.items()
        given = self.messages[partition][at : at + 7]
        self._at[partition] = at + len(given)
        return {partition: given}

    def close(self, autocommit: bool) -> None:
        assert not autocommit


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    made = Consumer()
    monkeypatch.setattr(kafka_seek, "KafkaConsumer", lambda **_: made)
    return made


def ids(records: list[Record]) -> list[str | None]:
    return [seek.glance(record.payload).turn_id for record in records]


def test_the_last_events_are_read_from_the_end_also_behind_watermarks(consumer: Consumer) -> None:
    for number in range(1, 501):
        consumer.event(FIRST, SPOOL, number, 1000.0 + number)
    for _ in range(100):
        consumer.put(FIRST, SPOOL, b"", watermark_headers(Watermark(1.0, False)))
    consumer.event(SECOND, OTHER, 1, 1499.5)
    assert ids(kafka_seek.last(LOG, 3)) == ["s-499", "o-1", "s-500"]
    assert min(offset for number, offset in consumer.starts if number == 0) > 300
    assert len(kafka_seek.last(LOG, 1000)) == 501


def test_an_event_is_seen_once_and_whole(consumer: Consumer) -> None:
    consumer.event(FIRST, SPOOL, 1, 1000.0, parts=3)
    consumer.event(FIRST, SPOOL, 2, 1001.0)
    consumer.event(FIRST, SPOOL, 1, 1000.0, parts=3)
    consumer.put(FIRST, SPOOL, b"of another program", [])
    assert ids(kafka_seek.last(LOG, 9)) == ["s-1", "s-2"]


def test_what_arrived_long_before_a_time_is_not_read(consumer: Consumer) -> None:
    for number in range(1, 101):
        consumer.event(FIRST, SPOOL, number, 1000.0 * number)
    consumer.event(SECOND, OTHER, 1, 50_500.0)
    assert ids(kafka_seek.since(LOG, 50_000.0, 3)) == ["s-50", "o-1", "s-51"]
    assert consumer.starts == [(0, 49), (1, 0)]
    assert kafka_seek.since(LOG, 200_000.0, 3) == []


def test_a_place_is_looked_for_in_the_partition_of_its_spool_first(consumer: Consumer) -> None:
    likely = TopicPartition("t", partition_of(SPOOL, 2))
    unlikely = SECOND if likely == FIRST else FIRST
    for number in range(1, 31):
        consumer.event(likely, SPOOL, number, 10_000.0 * number)
        consumer.event(likely, OTHER, number, 10_000.0 * number)
        consumer.event(unlikely, "moved", number, 10_000.0 * number)
    assert ids(kafka_seek.place(LOG, SPOOL, 20, 2)) == ["s-20", "s-21"]
    assert consumer.starts == [(likely.partition, 0)]
    consumer.starts.clear()
    assert ids(kafka_seek.place(LOG, SPOOL, 20, 1, at=200_000.0)) == ["s-20"]
    assert consumer.starts == [(likely.partition, 38)], "no earlier one is read where its time is known"
    assert ids(kafka_seek.place(LOG, "moved", 30, 5)) == ["moved-30"]
    with pytest.raises(LogError, match="nothing of spool s from sequence 31 on"):
        kafka_seek.place(LOG, SPOOL, 31, 1)


def test_what_retention_removed_is_passed_over(consumer: Consumer) -> None:
    for number in range(1, 11):
        consumer.event(FIRST, SPOOL, number, 1000.0 + number)
    consumer.removed = 6
    assert ids(kafka_seek.place(LOG, SPOOL, 2, 2)) == ["s-7", "s-8"]
    assert ids(kafka_seek.last(LOG, 9)) == ["s-7", "s-8", "s-9", "s-10"]
    with pytest.raises(LogError, match="no topic"):
        kafka_seek.last(LogSettings(kind="kafka", topic="none"), 1)
