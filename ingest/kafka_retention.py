"""How long Kafka keeps a record: what the receipt of an erasure waits for.

A segment of a partition takes records for `segment.ms` after its first one, or up to `segment.bytes`, and goes as a
whole once its last record is older than `retention.ms`. So a record may stay for both together, and for the minutes
until its broker looks again; its file goes `file.delete.delay.ms` later.
"""

import msgspec

from ingest.config import LogSettings
from ingest.log import LogError

_DELETE_DELAY_SECONDS = 60.0
"""Kafka's own, for a topic that is no more."""


class Retention(msgspec.Struct, frozen=True):
    """What a topic holds and for how long; without partitions where there is none, as with the embedded log."""

    begins: dict[int, int] = {}
    """Partition → its first offset: of what was below, retention has removed everything."""
    ends: dict[int, int] = {}
    segment_seconds: float = 0.0
    retention_seconds: float | None = None
    """None: for ever."""
    file_seconds: float = _DELETE_DELAY_SECONDS
    """How long a file outlives its records."""


def retention_of(log: LogSettings) -> Retention:
    """What the topic's broker says now. Raises `LogError`."""
    if log.kind == "embedded":
        return Retention()
    from kafka import KafkaConsumer, TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    from ingest.kafka_topic import settings_of

    servers = log.bootstrap.split(",")
    try:
        consumer = KafkaConsumer(bootstrap_servers=servers, bootstrap_timeout_ms=10_000)
        try:
            partitions = [TopicPartition(log.topic, n) for n in consumer.partitions_for_topic(log.topic) or ()]
            if not partitions:
                return Retention()
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        finally:
            consumer.close()
        admin = KafkaAdminClient(bootstrap_servers=servers, bootstrap_timeout_ms=10_000)
        try:
            settings = settings_of(admin, log.topic)
        finally:
            admin.close()
    except KafkaError as error:
        raise LogError(f"Kafka does not answer at {log.bootstrap}: {error}") from error
    kept = int(settings["retention.ms"])
    return Retention(
        {p.partition: at for p, at in begins.items()},
        {p.partition: at for p, at in ends.items()},
        int(settings["segment.ms"]) / 1000,
        None if kept < 0 else kept / 1000,
        int(settings["file.delete.delay.ms"]) / 1000,
    )
