"""A rebalance between a batch that was read and its landing: what was not landed is read again."""

from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ingest import kafka_log
from ingest.config import LogSettings
from ingest.kafka_chain import Chain
from ingest.kafka_log import KafkaLog
from ingest.kafka_topic import EventPlace, event_headers

PARTITION = TopicPartition("topic", 0)
RECORDS = 9


class Consumer:
    """kafka-python's: of a partition that it keeps in a rebalance, it goes on where it was."""

    config = {"group_id": "group"}  # noqa: RUF012

    def __init__(self, rebalance_at: int = 0) -> None:
        self._position, self._polls, self._rebalance_at = 0, 0, rebalance_at
        self.noted = 0

    def subscribe(self, topics, listener) -> None:
        self._listener = listener

    def poll(self, timeout_ms: int, max_records: int):
        self._polls += 1
        if self._polls in (1, self._rebalance_at):
            self._listener.on_partitions_revoked([])
            self._listener.on_partitions_assigned([PARTITION])
        at = self._position
        self._position = min(at + 2, RECORDS)
        return {PARTITION: [record(offset) for offset in range(at, self._position)]}

    def seek(self, partition, offset: int) -> None:
        self._position = offset

    def pause(self, *partitions) -> None:
        pass

    def resume(self, *partitions) -> None:
        pass

    def partitions_for_topic(self, topic):
        return {0}

    def assignment(self):
        return {PARTITION}

    def beginning_offsets(self, partitions):
        return {PARTITION: 0}

    def end_offsets(self, partitions):
        return {PARTITION: RECORDS}

    def committed(self, partition, metadata):
        return None

    def commit(self, offsets) -> None:
        self.noted = offsets[PARTITION].offset


def record(offset: int) -> SimpleNamespace:
    return SimpleNamespace(
        partition=0, offset=offset, key=b"s", value=b"event", headers=event_headers(EventPlace(offset + 1, offset))
    )


def test_what_a_rebalance_made_forget_is_read_again() -> None:
    for rebalance_at in range(2, 5):
        log = KafkaLog(LogSettings(kind="kafka", topic="topic"), None)
        given = log._read(Consumer(rebalance_at), lambda spool_id: 0, shared=True)  # type: ignore[arg-type]
        [batch] = [batch for batch in given if batch]
        assert [record.sequence for record in batch] == list(range(1, RECORDS + 1))


def test_an_offset_is_noted_once_its_batch_has_landed_which_the_next_but_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_log, "BATCH_RECORDS", 2)
    consumer, log = Consumer(), KafkaLog(LogSettings(kind="kafka", topic="topic"), None)
    log._marks = SimpleNamespace(write=lambda *facts: None, read=lambda: ({}, {}))  # type: ignore[assignment]
    batches = log._read(consumer, lambda spool_id: 0, shared=True)  # type: ignore[arg-type]
    seen = [([record.sequence for record in batch], consumer.noted) for batch in batches]
    assert seen == [([], 0), ([1, 2], 0), ([3, 4], 0), ([5, 6], 2), ([7, 8], 4), ([9], 6), ([], 6)]
    assert consumer.noted == RECORDS


def test_a_wait_that_another_version_noted_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for noted in ("1764000000.0", "1 then", "9 9 9"):
        monkeypatch.setattr(Consumer, "committed", lambda *_, noted=noted, **__: OffsetAndMetadata(4, noted, -1))
        log = KafkaLog(LogSettings(kind="kafka", topic="topic"), None)
        given = log._read(Consumer(), lambda spool_id: 4, shared=True)  # type: ignore[arg-type]
        [batch] = [batch for batch in given if batch]
        assert [record.sequence for record in batch] == list(range(5, RECORDS + 1))


def test_the_lake_is_asked_once_for_each_spool() -> None:
    asked: list[str] = []
    chain = Chain(lambda spool_id: asked.append(spool_id) or 0)  # type: ignore[func-returns-value]
    assert [chain.take("s", EventPlace(at, at - 1), headless=False) for at in (1, 2, 3)] == [True] * 3
    assert asked == ["s"]
