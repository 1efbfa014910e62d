"""The topic: how a record looks on Kafka, and which settings the topic must have.

A spool has one partition, chosen by its id, so its records keep their order. Key: the spool id. Headers:

- an event: `sequence`, and `previous`, the sequence shipped before it: a reader that has not seen that one knows that
  something is still to come and waits. The value is the event's bytes. An event above the topic's limit travels in
  several records, which also say `part` (from 0) of `parts`; its bytes are theirs, joined in that order.
- a watermark: `watermark`, Unix seconds: what the spool received up to then stands before this record; and `closed`,
  `1` where nothing will follow. No value.
"""

import contextlib
import zlib
from typing import NamedTuple

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from ingest.config import LogSettings
from ingest.log import LogError

Headers = list[tuple[str, bytes]]

RESERVE = 16 << 10
"""Bytes that a batch of one record may be larger than the record: headers, and what zstd adds to 8 MB of noise."""


class TopicInfo(NamedTuple):
    """What a producer must know of a topic that exists. `max_record_bytes`: the largest value that it takes."""

    partitions: int
    max_record_bytes: int


class EventPlace(NamedTuple):
    """Where an event belongs: its sequence, and the one shipped before it; and which part of it a record is."""

    sequence: int
    previous: int
    part: int = 0
    parts: int = 1


class Watermark(NamedTuple):
    """What a spool received up to `at` stands before this record; `closed`: nothing will follow."""

    at: float
    closed: bool


def partition_of(spool_id: str, partitions: int) -> int:
    """The partition of a spool."""
    return zlib.crc32(spool_id.encode()) % partitions


def split(payload: bytes, limit: int) -> list[bytes]:
    """Parts of at most `limit` bytes. Their number alone says where they are cut: whoever cuts gets the same ones."""
    size = -(-len(payload) // max(1, -(-len(payload) // limit)))
    return [payload[at : at + size] for at in range(0, len(payload), size)]


def event_headers(place: EventPlace) -> Headers:
    """Headers of an event's record."""
    names = ("sequence", "previous") if place.parts == 1 else place._fields
    return [(name, str(getattr(place, name)).encode()) for name in names]


def watermark_headers(mark: Watermark) -> Headers:
    """Headers of a watermark's record."""
    return [("watermark", f"{mark.at:.6f}".encode()), ("closed", b"1" if mark.closed else b"0")]


def parse_headers(headers: Headers) -> EventPlace | Watermark | None:
    """What the headers of a record say; None where no forwarder wrote them."""
    found = dict(headers)
    try:
        if "watermark" in found:
            return Watermark(float(found["watermark"]), found["closed"] == b"1")
        return EventPlace(
            int(found["sequence"]), int(found["previous"]), int(found.get("part", 0)), int(found.get("parts", 1))
        )
    except (KeyError, ValueError):
        return None


def ensure_topic(settings: LogSettings) -> TopicInfo:
    """Creates the topic where it does not exist, and checks the one that does.

    Raises `LogError` where the topic would lose events; `KafkaError` where no broker answers.
    """
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap.split(","), bootstrap_timeout_ms=5_000)
    try:
        retention = int(settings.retention_days * 86_400_000)
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(retention),
            "segment.ms": str(min(retention, 86_400_000)),
            "max.message.bytes": str(settings.max_record_bytes + RESERVE),
            "min.insync.replicas": "2" if settings.replication > 2 else "1",
            "compression.type": "producer",
        }
        topic = NewTopic(settings.topic, settings.partitions, settings.replication, topic_configs=configs)
        with contextlib.suppress(TopicAlreadyExistsError):
            admin.create_topics([topic], wait_for_metadata=True)
        [description] = admin.describe_topics([settings.topic])
        resource = ConfigResource(ConfigResourceType.TOPIC, settings.topic)
        config = admin.describe_configs([resource], config_filter="all")["topic"][settings.topic]
    finally:
        admin.close()
    if "compact" in config["cleanup.policy"]["value"]:
        raise LogError(f"topic {settings.topic} is compacted, which removes events: set its cleanup.policy to delete")
    limit = int(config["max.message.bytes"]["value"]) - RESERVE
    if limit <= 0:
        raise LogError(f"topic {settings.topic} takes no record above {RESERVE} bytes: raise max.message.bytes")
    return TopicInfo(len(description["partitions"]), min(limit, settings.max_record_bytes))
