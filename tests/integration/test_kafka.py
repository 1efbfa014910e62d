"""The log on a real Kafka broker: forwarded, killed, restarted, in parts, and in the lake exactly once."""

import random
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from ingest.config import LogSettings
from ingest.forwarder import Forwarder
from ingest.kafka_topic import ensure_topic
from ingest.lake import FEEDBACK, TURNS, open_table, read
from ingest.land import land
from ingest.log import LogError, every
from ingest.spool import Spool, folders
from tests.kafka import Broker
from tests.log_events import accept, turn

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


def settings(broker: Broker, **fields) -> LogSettings:
    values = {"kind": "kafka", "bootstrap": broker.bootstrap, "topic": f"t-{uuid.uuid4().hex}", "partitions": 3}
    return LogSettings(**(values | fields))


def fill(root: Path, prefix: str, turns: int, segment_bytes: int = 20_000) -> Spool:
    """An open spool with `turns` turns, each with its feedback."""
    spool = Spool.open(root, segment_bytes=segment_bytes, segment_seconds=0.2)
    for at in range(0, turns, 20):
        names = [f"{prefix}-{i}" for i in range(at, min(at + 20, turns))]
        spool.append_sync([event for name in names for event in (turn(name), accept(f"f-{name}", name))])
    return spool


def names(*counted: tuple[str, int]) -> list[str]:
    return sorted(f"{prefix}-{i}" for prefix, count in counted for i in range(count))


def ids(lake: Path, table: str = TURNS, column: str = "turn_id") -> list[str]:
    return sorted(read(lake, table).to_table(columns=[column])[column].to_pylist())


def forward(root: Path, log: LogSettings) -> Forwarder:
    """A connected forwarder after one pass."""
    forwarder = Forwarder(root, log, threading.Event())
    forwarder.connect()
    forwarder.once()
    return forwarder


def until(condition, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def rewind(log: LogSettings, lake: Path) -> None:
    """The lake's landers begin at the topic's start again."""
    group = f"everloop-{open_table(lake, TURNS).metadata().id}"
    consumer = KafkaConsumer(bootstrap_servers=log.bootstrap, group_id=group, enable_auto_commit=False)
    every = [TopicPartition(log.topic, number) for number in consumer.partitions_for_topic(log.topic)]
    consumer.assign(every)
    consumer.commit({partition: OffsetAndMetadata(0, "", -1) for partition in every})
    consumer.close()


def process(root: Path, log: LogSettings, before: str = "", stderr: int | None = None) -> subprocess.Popen:
    """The forwarder as a process, with `before` run first."""
    code = f"import sys\n{before}\nfrom ingest.forwarder import main\nsys.argv[0] = 'forwarder'\nmain()"
    arguments = ["--spool", str(root), "--bootstrap", log.bootstrap, "--topic", log.topic, "--partitions", "3"]
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=stderr)


def test_ships_removes_and_lands_once(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    fill(root, "a", 200).close()
    living = fill(root, "b", 100)
    filled = time.time()
    until(lambda: living.folder.watermark() > filled)
    forward(root, log).close()
    forwarded = time.time()
    assert [f.spool_id for f in folders(root)] == [living.spool_id], "a closed spool that is shipped is removed"

    report = land(log=log, spool=root, lake=lake)
    assert report.rows[TURNS] == 300
    assert filled < report.watermark < forwarded
    assert ids(lake) == ids(lake, FEEDBACK, "target_id") == names(("a", 200), ("b", 100))
    assert sum(land(log=log, spool=root, lake=lake).rows.values()) == 0

    rewind(log, lake)
    assert sum(land(log=log, spool=root, lake=lake).rows.values()) == 0, "offsets only bound the replay"
    living.close()
    forward(root, log).close()
    land(log=log, spool=root, lake=lake)
    assert list(folders(root)) == []
    assert len(list(every(log, root))) == 600


def test_kill_9_between_acknowledgement_and_removal_duplicates_the_topic_not_the_lake(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    fill(root, "a", 100).close()
    suicide = (
        "import os; from ingest.spool import SpoolFolder as F; F.write_shipped = lambda *_: os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        assert process(root, log, suicide).wait() == -9
    land(log=log, spool=root, lake=lake)
    forward(root, log).close()
    land(log=log, spool=root, lake=lake)

    consumer = KafkaConsumer(
        log.topic, bootstrap_servers=log.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=3000
    )
    on_topic = [dict(m.headers)["sequence"] for m in consumer if dict(m.headers).get("sequence")]
    consumer.close()
    assert len(on_topic) > len(set(on_topic)) == 200
    assert ids(lake) == ids(lake, FEEDBACK, "target_id") == names(("a", 100))


def test_kill_9_of_the_writer_and_the_forwarder_at_random_loses_nothing(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    for i in range(3):
        forwarder = process(root, log)
        spool = fill(root, f"s{i}", 200, segment_bytes=4_000)
        until(lambda folder=spool.folder, enough=100 * i: folder.shipped() > enough)
        forwarder.kill()
        forwarder.wait()
        spool.close()
        land(log=log, spool=root, lake=lake)
    forward(root, log).close()
    land(log=log, spool=root, lake=lake)
    assert ids(lake) == ids(lake, FEEDBACK, "target_id") == names(("s0", 200), ("s1", 200), ("s2", 200))


def test_a_broker_that_is_down_costs_disk_not_events(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    ensure_topic(log)
    forwarder = process(root, log)
    first = fill(root, "a", 60)
    until(lambda: first.folder.shipped() == 120)
    broker.kill()
    second = fill(root, "b", 60)
    second.close()
    assert second.folder.sealed()
    with pytest.raises(LogError, match="broker"):
        land(log=log, spool=root, lake=lake)
    broker.start()
    until(lambda: not second.folder.path.exists())
    first.close()
    until(lambda: not first.folder.path.exists())
    forwarder.terminate()
    assert forwarder.wait() == 0
    report = land(log=log, spool=root, lake=lake)
    assert report.rows[TURNS] == 120
    assert ids(lake) == names(("a", 60), ("b", 60))


def test_a_forwarder_stops_when_asked_with_no_broker_there(broker: Broker, tmp_path: Path):
    log = settings(broker, bootstrap="127.0.0.1:1")
    with process(tmp_path, log, stderr=subprocess.PIPE) as forwarder:
        assert any(b"no broker at" in line for line in forwarder.stderr)
        forwarder.terminate()
        assert forwarder.wait(180) == 0


def limit(broker: Broker, topic: str, size: int) -> None:
    """Somebody changes the topic's limit behind the forwarder's back."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(size)})])
    admin.close()


def noise(characters: int) -> str:
    return "".join(chr(random.randrange(0x4E00, 0x9000)) for _ in range(characters))


@pytest.mark.parametrize("lowered", [False, True])
def test_an_event_above_the_record_limit_arrives_like_any_other(broker: Broker, tmp_path: Path, lowered: bool):
    log, root, lake = settings(broker, max_record_bytes=100_000), tmp_path / "spool", tmp_path / "lake"
    stop = threading.Event()
    forwarder = Forwarder(root, log, stop, every=0.1)
    running = threading.Thread(target=forwarder.run)
    running.start()
    until(lambda: forwarder._producer is not None)
    if lowered:
        limit(broker, log.topic, 40_000)
    spool, text = Spool.open(root), noise(100_000)
    spool.append_sync([turn("before"), turn("large", request=text), turn("after")])
    spool.append_sync([turn(f"more-{i}") for i in range(50)])
    spool.close()
    until(lambda: not spool.folder.path.exists())
    stop.set()
    running.join()
    land(log=log, spool=root, lake=lake)
    assert ids(lake) == sorted(["before", "after", "large", *(f"more-{i}" for i in range(50))])
    rows = read(lake, TURNS).to_table(columns=["turn_id", "request"]).to_pylist()
    assert [row["request"] for row in rows if row["turn_id"] == "large"] == [text]


def test_an_event_of_the_largest_body_fits_the_default_settings(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    spool, text = Spool.open(root), noise((16 << 20) // 3)
    spool.append_sync([turn("large", request=text), turn("after")])
    spool.close()
    forward(root, log).close()
    assert list(folders(root)) == []
    land(log=log, spool=root, lake=lake)
    assert ids(lake) == ["after", "large"]


def test_a_pass_that_ends_within_an_event_goes_on_from_its_beginning(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker, max_record_bytes=20_000), tmp_path / "spool", tmp_path / "lake"
    spool = Spool.open(root)
    spool.append_sync([turn("before"), turn("large", request=noise(100_000)), turn("after")])
    spool.close()
    first, second = Forwarder(root, log, threading.Event()), Forwarder(root, log, threading.Event())
    first.connect()
    send, sent = first._send, []

    def send_five(spool_id, partition, value, headers):
        if len(sent) == 5:
            raise KeyboardInterrupt
        sent.append(headers)
        return send(spool_id, partition, value, headers)

    first._send = send_five  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.once()
    first._producer.flush()
    first.close()
    land(log=log, spool=root, lake=lake)
    assert ids(lake) == ["before"]
    second.connect()
    second.once()
    second.close()
    land(log=log, spool=root, lake=lake)
    assert ids(lake) == ["after", "before", "large"]
    assert sum(land(log=log, spool=root, lake=lake).rows.values()) == 0


def test_a_topic_that_would_lose_events_is_refused(broker: Broker, tmp_path: Path):
    log = settings(broker)
    ensure_topic(log)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, log.topic, configs={"cleanup.policy": "compact"})])
    admin.close()
    with pytest.raises(LogError, match="compacted"):
        ensure_topic(log)
    with pytest.raises(LogError, match="no topic"):
        land(log=settings(broker), spool=tmp_path, lake=tmp_path / "lake")
