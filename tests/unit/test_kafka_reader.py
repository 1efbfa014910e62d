"""What a lander keeps, commits and forgets of the partitions that it has: against a consumer that only says offsets."""

from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import CommitFailedError
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from ingest import kafka_log
from ingest.config import LogSettings
from ingest.kafka_log import _Mine
from ingest.kafka_topic import EventPlace, Watermark, event_headers, watermark_headers
from ingest.log import BATCH_BYTES, BATCH_RECORDS
from ingest.watermarks import Mark

ZERO = TopicPartition("t", 0)


class Consumer:
    """A group's consumer with one partition, of offsets `begin` to `end`."""

    config = {"group_id": "group"}  # noqa: RUF012 - read only

    def __init__(self, begin: int = 0, end: int = 1000) -> None:
        self.begin, self.end = begin, end
        self.times: list[float] = []
        """When the broker got its records, by its own clock."""
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.refuses = False
        self.paused: set[TopicPartition] = set()

    def assignment(self) -> set[TopicPartition]:
        return {ZERO}

    def beginning_offsets(self, partitions: list) -> dict:
        return {ZERO: self.begin}

    def end_offsets(self, partitions: list) -> dict:
        return {ZERO: self.end}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def offsets_for_times(self, times: dict) -> dict:
        found = [(at, offset) for offset, at in enumerate(self.times) if at * 1000 >= times[ZERO]]
        return {ZERO: OffsetAndTimestamp(found[0][1], int(found[0][0] * 1000), -1) if found else None}

    def committed(self, partition: TopicPartition, metadata: bool) -> OffsetAndMetadata | None:
        return self.offsets.get(partition)

    def commit(self, offsets: dict) -> None:
        if self.refuses:
            raise CommitFailedError
        self.offsets |= offsets

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= {*partitions}

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= {*partitions}


def mine(consumer: Consumer, have: int = 0, lost_after: float = 3600.0) -> _Mine:
    """Right after its partitions were assigned."""
    found = _Mine(consumer, lambda spool_id: have, lost_after)
    found.on_partitions_assigned([ZERO])
    assert found.begin()
    return found


def test_nothing_more_is_asked_of_a_partition_that_was_read_to_its_end_until_it_is_assigned_anew() -> None:
    consumer = Consumer(end=2)
    reader = mine(consumer)
    reader.take(event(0, 1))
    reader.rest({ZERO: 2})
    assert consumer.paused == set()
    reader.take(event(1, 2))
    reader.rest({ZERO: 2})
    assert consumer.paused == {ZERO}
    reader.on_partitions_revoked([ZERO])
    reader.rest({ZERO: 2})  # while nobody knows whose it is
    reader.on_partitions_assigned([ZERO])
    assert reader.begin()
    assert consumer.paused == set(), "from the committed offset, where it stood before"


def landed(reader: _Mine) -> None:
    """What it took is given, and lands."""
    reader.give({})
    reader.commit(reader.given.popleft().offsets)


def event(offset: int, sequence: int, previous: int | None = None, size: int = 10) -> SimpleNamespace:
    place = EventPlace(sequence, sequence - 1 if previous is None else previous)
    headers = event_headers(place)
    return SimpleNamespace(partition=0, offset=offset, key=b"s", value=b"x" * size, headers=headers, timestamp=100_000)


def mark(offset: int, at: float) -> SimpleNamespace:
    return SimpleNamespace(
        partition=0, offset=offset, key=b"s", value=b"", headers=watermark_headers(Watermark(at, False))
    )


def test_an_offset_is_committed_only_up_to_what_was_taken():
    consumer = Consumer(end=3)
    reader = mine(consumer)
    for message in (event(0, 1), event(1, 2), mark(2, 5.0)):
        assert not reader.reached({ZERO: 3})
        reader.take(message)
    assert reader.reached({ZERO: 3})
    assert reader.complete() == [0]
    assert (len(reader.batch), reader.marks) == (2, {"s": Mark(5.0, False)})
    landed(reader)
    assert consumer.offsets[ZERO].offset == 3


def test_partitions_that_move_take_what_was_not_landed_with_them():
    consumer = Consumer()
    reader = mine(consumer)
    reader.take(event(0, 1))
    reader.on_partitions_revoked([ZERO])
    assert (reader.batch, reader.marks) == ([], {})
    assert not reader.reached({ZERO: 1}), "it has none until it is told which"
    reader.on_partitions_assigned([ZERO])
    reader.begin()
    reader.take(event(0, 1))
    assert len(reader.batch) == 1, "read again from the committed offset"


def test_one_that_was_given_up_for_dead_commits_no_offset_and_goes_on():
    consumer = Consumer()
    consumer.refuses = True
    reader = mine(consumer)
    reader.take(event(0, 1))
    landed(reader)
    assert consumer.offsets == {}


def test_what_waits_is_read_again_and_its_watermark_waits_too():
    consumer = Consumer()
    reader = mine(consumer)
    for message in (event(0, 1), event(1, 3, previous=2), mark(2, 5.0)):
        reader.take(message)
    assert (len(reader.batch), reader.marks, reader.complete()) == (1, {}, [])
    landed(reader)
    assert consumer.offsets[ZERO].offset == 1
    assert consumer.offsets[ZERO].metadata == "0 100.000", "how long it waits outlives its lander"
    again = mine(consumer, have=1)
    again.take(event(1, 3, previous=2))
    landed(again)
    assert consumer.offsets[ZERO].metadata == "0 100.000", "the topic has not gone on"
    filled = mine(consumer, have=1)
    for message in (event(1, 3, previous=2), event(2, 2), event(3, 3)):
        filled.take(message)
    assert [record.sequence for record in filled.batch] == [2, 3]


def test_what_waits_too_long_is_counted_as_lost_and_the_rest_goes_on():
    consumer = Consumer()
    consumer.offsets[ZERO] = OffsetAndMetadata(1, "0 100.000", -1)
    consumer.times = [100.0 + second for second in range(59)]
    for _ in range(20):
        patient = mine(consumer, have=1, lost_after=60.0)
        patient.take(event(1, 5, previous=4))
        assert (patient.batch, patient.chain.lost) == ([], 0)
        landed(patient)
    assert consumer.offsets[ZERO] == OffsetAndMetadata(1, "9 154.000", -1), "nine passes saw that the topic went on"
    consumer.times.append(160.0)
    reader = mine(consumer, have=1, lost_after=60.0)
    for message in (event(1, 5, previous=4), event(2, 6)):
        reader.take(message)
    assert ([record.sequence for record in reader.batch], reader.chain.lost) == ([5, 6], 3)
    landed(reader)
    assert consumer.offsets[ZERO] == OffsetAndMetadata(3, "", -1)


def test_a_broker_that_was_down_for_days_is_no_reason_to_give_up_what_waits():
    consumer = Consumer()
    consumer.offsets[ZERO] = OffsetAndMetadata(1, "0 100.000", -1)
    consumer.times = [100.0, 1e6, 1e6 + 1]
    for _ in range(20):
        reader = mine(consumer, have=1, lost_after=60.0)
        reader.take(event(1, 5, previous=4))
        assert reader.batch == []
        landed(reader)
    assert consumer.offsets[ZERO] == OffsetAndMetadata(1, "1 1000000.000", -1)


def test_a_head_that_was_removed_or_a_topic_made_anew_is_told_by_the_committed_offset():
    for consumer in (Consumer(begin=40), Consumer(begin=0, end=10)):
        consumer.offsets[ZERO] = OffsetAndMetadata(20, "", -1)
        reader = mine(consumer)
        reader.take(event(consumer.begin, 41, previous=40))
        assert (len(reader.batch), reader.chain.lost) == (1, 40)


def test_a_poll_asks_for_no_more_than_a_batch_of_the_largest_records_lately():
    reader = mine(Consumer())
    assert reader.room() * (8 << 20) <= 4 * BATCH_BYTES, "nothing is known of their size yet"
    for offset in range(500):
        reader.take(event(offset, offset + 1))
    assert reader.room() == BATCH_RECORDS - 500
    reader.take(event(500, 501, size=8 << 20))
    assert reader.room() == (BATCH_BYTES - (8 << 20) - 5000) // (8 << 20)


def test_a_broker_that_nobody_asked_while_a_batch_landed_is_not_gone(monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(now=0.0, time=lambda: 100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(kafka_log, "time", clock)
    monkeypatch.setattr(kafka_log, "BATCH_RECORDS", 1)

    class Slow(Consumer):
        config = {"group_id": None}  # noqa: RUF012 - read only
        polls = iter([{}, {ZERO: [event(0, 1)]}, {}, {ZERO: [event(1, 2)]}])

        def assign(self, partitions: list) -> None:
            pass

        def seek_to_beginning(self, *partitions: TopicPartition) -> None:
            pass

        def poll(self, timeout_ms: int, max_records: int) -> dict:
            return next(self.polls)

    given = []
    for batch in kafka_log.KafkaLog(LogSettings(topic="t"), None)._read(Slow(end=2), lambda spool_id: 0, shared=False):
        given += [record.sequence for record in batch]
        clock.now += 70.0
    assert given == [1, 2]
