"""Forgetting with the log on a real broker: a receipt waits for the topic's own retention, and then nothing is left."""

from pathlib import Path

import msgspec
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from ingest.kafka_topic import ensure_topic
from ingest.lake import TURNS
from ingest.receipts import ReceiptState
from ingest.spool import Spool
from pipelines.config import Config
from pipelines.forgetting import Forgetting
from pipelines.home import Home
from pipelines.stack.addresses import Addresses
from tests.forgetting import Inline, mentions
from tests.integration.test_kafka import forward, ids, settings, until
from tests.kafka import Broker
from tests.log_events import turn

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

ANNA, BEN = "a1" * 16, "b2" * 16


def alter(broker: Broker, topic: str, **changes: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    values = {name.replace("_", "."): value for name, value in changes.items()}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=values)])
    admin.close()


def test_a_receipt_waits_for_the_topics_retention_and_files(broker: Broker, tmp_path: Path):
    home, log = Home.at(tmp_path).create(), settings(broker, partitions=1)
    where = Addresses(ports={}, kafka=broker.bootstrap)
    (home.run / "ports.json").write_bytes(msgspec.json.encode(where))
    ensure_topic(log)
    alter(broker, log.topic, compression_type="uncompressed")  # so that its files can be searched
    config = Config.model_validate({"log": {"topic": log.topic, "partitions": 1}})
    forgetting = Forgetting(config, home, Inline())  # type: ignore[arg-type]
    spool = Spool.open(home.spool)
    spool.append_sync([turn("one", subject=ANNA), turn("two", subject=BEN)])
    spool.close()
    forward(home.spool, log).close()
    forgetting.receipts.request("subject", ANNA)

    [receipt] = forgetting.look()
    assert (receipt.state, "is the forwarder running" in receipt.waits) == (ReceiptState.FILED, True)
    forward(home.spool, log).close()
    [receipt] = forgetting.look()
    assert (receipt.state, receipt.removed["turns"]) == (ReceiptState.REMOVING, 1), "its turn's erasure is filed, too"
    forward(home.spool, log).close()
    [receipt] = forgetting.look()
    assert receipt.state is ReceiptState.RETAINED, "where no gateway lives as well"
    assert "a segment takes records for 1 days" in receipt.waits
    assert "stays for 7 days (retention.ms)" in receipt.waits
    assert ids(home.lake, TURNS) == ["two"]
    assert {word for _, word in mentions(broker.data, [ANNA, BEN])} == {ANNA, BEN}

    alter(broker, log.topic, retention_ms="1000", segment_ms="500", file_delete_delay_ms="0")
    until(lambda: forgetting.look()[0].state is ReceiptState.COMPLETE)
    until(lambda: mentions(broker.data, [ANNA, BEN]) == set())  # the broker's threads, not its retention
    assert {file.split("/")[0] for file, _ in mentions(tmp_path, [BEN])} == {"lake"}
    assert mentions(tmp_path, [ANNA]) == set()
