"""Finding one's way on a topic: by the broker's index of times, by the spool's partition, and from the end."""

import threading
import time
from pathlib import Path

import pytest
from kafka import TopicPartition

from ingest import kafka_seek, seek
from ingest.config import LogSettings
from ingest.contracts.events import Record
from ingest.forwarder import Forwarder
from ingest.kafka_topic import partition_of
from ingest.land import land
from ingest.log import LogError
from ingest.spool import Spool
from tests.integration.test_kafka import forward, noise, settings
from tests.kafka import Broker
from tests.log_events import turn

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(partition, offset) of each reading that begins."""
    seen: list[tuple[int, int]] = []
    read = kafka_seek._Topic.read

    def noting(self: kafka_seek._Topic, partition: TopicPartition, start: int):
        seen.append((partition.partition, start))
        return read(self, partition, start)

    monkeypatch.setattr(kafka_seek._Topic, "read", noting)
    return seen


def spool_of(root: Path, log: LogSettings, name: str, turns: int, **fields) -> str:
    """A closed spool of turns that ended just now, shipped; its id."""
    spool = Spool.open(root)
    spool.append_sync([turn(f"{name}-{i}", finished_at=time.time(), **fields) for i in range(turns)])
    spool.close()
    forward(root, log).close()
    return spool.spool_id


def ids(records: list[Record]) -> list[str | None]:
    return [seek.glance(record.payload).turn_id for record in records]


def test_a_place_a_time_a_turn_and_the_end_are_found(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[int, int]]
) -> None:
    log, root, lake = settings(broker, max_record_bytes=60_000), tmp_path / "spool", tmp_path / "lake"
    monkeypatch.setattr(kafka_seek, "_CLOCKS_APART", 0.0)
    first = spool_of(root, log, "a", 300)
    there = partition_of(first, 3)
    living = Spool.open(root)  # its watermarks stand behind the events
    for _ in range(3):
        watermarks = Forwarder(root, log, threading.Event())
        watermarks.connect()
        watermarks.once()
        watermarks.close()
    between = time.time()
    second = spool_of(root, log, "b", 40, request=noise(40_000))  # each in several records

    assert ids(seek.last(log, root, 3)) == ["b-37", "b-38", "b-39"]
    assert all(offset > 250 for number, offset in starts if number == there), "from the end, not from the beginning"
    assert len(seek.last(log, root, 10_000)) == 340

    starts.clear()
    assert ids(seek.since(log, root, between, 2)) == ["b-0", "b-1"]
    assert all(offset >= 300 for number, offset in starts if number == there), "what came before is not read"
    assert seek.since(log, root, time.time() + 60, 2) == []

    starts.clear()
    assert ids(seek.place(log, root, first, 101, 2)) == ["a-100", "a-101"]
    assert starts == [(there, 0)], "in the spool's partition only"
    monkeypatch.setattr(kafka_seek, "partition_of", lambda spool_id, partitions: 0)
    assert ids(seek.place(log, root, second, 40, 5)) == ["b-39"], "wherever it is"
    with pytest.raises(LogError, match="nothing of spool"):
        seek.place(log, root, second, 41, 1)

    land(log=log, spool=root, lake=lake)
    starts.clear()
    assert ids(seek.turn(log, root, lake, "b-7")) == ["b-7"]
    assert all(offset >= 300 for number, offset in starts if number == there), "the lake knows when it was"
    assert seek.count(log, root) == {"turn": 340}
    living.close()
    with pytest.raises(LogError, match="no topic"):
        seek.last(settings(broker), root, 1)
