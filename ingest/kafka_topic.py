"""The topic: how a record looks on Kafka, and which settings the topic must have.

A spool has one partition, chosen by its id, so its records keep their order. Key: the spool id. Headers:

- an event: `sequence`, and `previous`, the sequence shipped before it: a reader that has not seen that one knows that
  something is still to come and waits. The value is the event's bytes. An event above the topic's limit travels in
  several records, which also say `part` (from 0) of `parts`; its bytes are theirs, joined in that order.
- a watermark: `watermark`, Unix seconds: what the spool received up to then stands before this record; and `closed`,
  `1` where nothing will follow. No value.
"""

import contextlib
import logging
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from ingest.config import LogSettings
from ingest.log import LogError

logger = logging.getLogger(__name__)

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
    if len(payload) <= limit:
        return [payload]
    size = -(-len(payload) // -(-len(payload) // limit))
    return [payload[at : at + size] for at in range(0, len(payload), size)]


def event_headers(place: EventPlace) -> Headers:
    """Headers of an event's record."""
    names = place._fields if place.parts > 1 else place._fields[:2]
    return [(name, b"%d" % value) for name, value in zip(names, place, strict=False)]


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


def wanted(settings: LogSettings) -> dict[str, str]:
    """The settings of the topic."""
    retention = int(settings.retention_days * 86_400_000)
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(settings.max_record_bytes + RESERVE),
        # Else a forwarder's clock decides when its records go: a wrong one has them refused, or removed at once.
        "message.timestamp.type": "LogAppendTime",
        # Two have a record before it leaves the spool: one broker's disk may die. Fewer in sync cost disk, not events.
        "min.insync.replicas": str(min(2, settings.replication)),
        "retention.bytes": "-1",
        "retention.ms": str(retention),
        "segment.ms": str(min(retention, 86_400_000)),
        "unclean.leader.election.enable": "false",
    }


def settings_of(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    """The settings that a topic has. Raises `KafkaError`."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], config_filter="all")["topic"][topic]
    return {name: entry["value"] for name, entry in found.items()}


def ensure_topic(settings: LogSettings) -> TopicInfo:
    """Creates the topic where it does not exist, and checks the one that does.

    Raises `LogError` where the topic would lose events; `KafkaError` where no broker answers.
    """
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap.split(","), bootstrap_timeout_ms=5_000)
    try:
        topic = NewTopic(settings.topic, settings.partitions, settings.replication, topic_configs=wanted(settings))
        with contextlib.suppress(TopicAlreadyExistsError):
            admin.create_topics([topic], wait_for_metadata=True)
        [description] = admin.describe_topics([settings.topic])
        found = settings_of(admin, settings.topic)
    finally:
        admin.close()
    partitions = description["partitions"]
    replicas = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
    for sentence in doubts(settings, found, len(partitions), replicas):
        logger.warning("%s", sentence)
    return TopicInfo(len(partitions), min(int(found["max.message.bytes"]) - RESERVE, settings.max_record_bytes))


def doubts(settings: LogSettings, found: Mapping[str, str], partitions: int, replicas: int) -> list[str]:
    """What of a topic differs from what it should be, one sentence each. `found`: its settings.

    Raises `LogError` where it would lose events.
    """
    want = wanted(settings)

    def alter(*names: str) -> str:
        values = ",".join(f"{name}={want[name]}" for name in names)
        return (
            f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --entity-type topics "
            f"--entity-name {settings.topic} --add-config {values}"
        )

    def refuse(reason: str, name: str) -> None:
        raise LogError(f"topic {settings.topic} would lose events: {reason}. Set it: {alter(name)}")

    if "compact" in found["cleanup.policy"]:
        refuse("it is compacted, which removes all but the last of each spool", "cleanup.policy")
    if found["message.timestamp.type"] != "LogAppendTime":
        refuse(
            "its records have the times of forwarders' clocks, and go early where one is wrong",
            "message.timestamp.type",
        )
    if replicas > 1 and found["unclean.leader.election.enable"] != "false":
        refuse("a replica that lacks events may lead it", "unclean.leader.election.enable")
    if int(found["max.message.bytes"]) <= RESERVE:
        raise LogError(f"topic {settings.topic} takes no record above {RESERVE} bytes: {alter('max.message.bytes')}")
    if int(found["min.insync.replicas"]) > replicas:
        raise LogError(
            f"topic {settings.topic} takes nothing: it has {replicas} replicas, and min.insync.replicas is "
            f"{found['min.insync.replicas']}: {alter('min.insync.replicas')}, or add replicas"
        )
    sentences = []
    if (found["retention.ms"], found["retention.bytes"]) != (want["retention.ms"], "-1"):
        sentences.append(
            f"keeps records for {found['retention.ms']} ms and {found['retention.bytes']} bytes (-1: for ever), not "
            f"for retention_days, {settings.retention_days:g}: what is not landed sooner is lost, or an erasure is "
            f"told complete too early: {alter('retention.ms', 'retention.bytes')}"
        )
    if replicas < settings.replication or int(found["min.insync.replicas"]) < int(want["min.insync.replicas"]):
        sentences.append(
            f"acknowledges a record that {found['min.insync.replicas']} of {replicas} replicas have: replication is to "
            f"be {settings.replication}, and {alter('min.insync.replicas')}"
        )
    if int(found["max.message.bytes"]) < int(want["max.message.bytes"]):
        sentences.append(f"takes records of {found['max.message.bytes']} bytes: larger events go in parts of that size")
    if partitions != settings.partitions:
        sentences.append(f"has {partitions} partitions, and not {settings.partitions}: that is no harm")
    if found["compression.type"] not in ("producer", "zstd"):
        sentences.append(f"has the broker compress again: {alter('compression.type')}")
    return [f"topic {settings.topic} {sentence}" for sentence in sentences]
