"""Several landers of one lake share a topic: through rebalances, kills and pauses every event lands once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions

from ingest.config import LakeSettings, LogSettings
from ingest.kafka_topic import ensure_topic
from ingest.lake import FEEDBACK, TURNS, open_table, read
from ingest.land import land
from ingest.log import every
from ingest.upkeep import upkeep
from ingest.watermarks import Marks
from tests.integration.test_kafka import fill, forward, ids, names, settings, until
from tests.kafka import Broker

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

_LANDER = """
import sys, time
from pathlib import Path
from ingest import kafka_log, land
from ingest.config import LogSettings
kafka_log.BATCH_RECORDS = 20
take = land._Lander.take
def slowly(lander, batch):
    print("batch", flush=True)
    time.sleep(float(sys.argv[3]))
    take(lander, batch)
land._Lander.take = slowly
while True:
    try:
        report = land.land(log=LogSettings.model_validate_json(sys.argv[1]), spool=Path("-"), lake=Path(sys.argv[2]))
        print("done", report.rows, flush=True)
    except Exception as error:
        print("later", type(error).__name__, error, flush=True)
    time.sleep(0.1)
"""


@contextmanager
def lander(log: LogSettings, lake: Path, output: Path, seconds: float = 0.0) -> Iterator[subprocess.Popen]:
    """A process that lands for ever, each batch of 20 in at least so many seconds. Its words go to `output`."""
    with output.open("wb") as words:
        arguments = [sys.executable, "-c", _LANDER, log.model_dump_json(), str(lake), str(seconds)]
        process = subprocess.Popen(arguments, stdout=words, stderr=words)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def turns(lake: Path) -> int:
    return read(lake, TURNS).count_rows()


def test_two_landers_share_the_partitions_through_a_pause_and_a_kill(broker: Broker, tmp_path: Path):
    """One is stopped in mid-batch until it is given up for dead and its partitions are landed by the other; then it
    comes back with its old batch. The other is killed. Upkeep and an erasure's clearing go on beside them."""
    log, root, lake = settings(broker), tmp_path / "spool", tmp_path / "lake"
    for i in range(6):
        fill(root, f"a{i}", 100).close()
    until(lambda: forward(root, log).close() or not any(root.iterdir()))
    for name in (TURNS, FEEDBACK):
        open_table(lake, name)
    first_words, second_words = tmp_path / "first", tmp_path / "second"
    with ExitStack() as landers:
        first = landers.enter_context(lander(log, lake, first_words, seconds=0.3))
        until(lambda: "batch" in first_words.read_text())  # it has much to do still when the quick one joins it
        second = landers.enter_context(lander(log, lake, second_words))
        until(lambda: second_words.read_text() and first_words.read_text().count("batch") > 2)
        os.kill(first.pid, signal.SIGSTOP)
        until(lambda: turns(lake) == 600)
        upkeep(lake, LakeSettings(), time.time())
        upkeep(lake, LakeSettings(), time.time(), erase=True)
        os.kill(first.pid, signal.SIGCONT)
        for i in range(3):
            fill(root, f"b{i}", 100).close()
        forward(root, log).close()
        until(lambda: turns(lake) > 650)
        second.kill()
        second.wait()
        until(lambda: forward(root, log).close() or not any(root.iterdir()))
        until(lambda: turns(lake) >= 900)
        assert first.poll() is None
        seen = first_words.read_text().count("done")
        until(lambda: first_words.read_text().count("done") > seen)
    expected = names(*((f"a{i}", 100) for i in range(6)), *((f"b{i}", 100) for i in range(3)))
    assert ids(lake) == ids(lake, FEEDBACK, "target_id") == expected
    assert sum(land(log=log, spool=root, lake=lake).rows.values()) == 0
    assert len(list(every(log, root))) >= 1800


def test_a_watermark_is_that_of_all_landers_together(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker, partitions=2), tmp_path / "spool", tmp_path / "lake"
    fill(root, "a", 20).close()
    until(lambda: forward(root, log).close() or not any(root.iterdir()))
    report = land(log=log, spool=root, lake=lake)
    assert report.watermark > 0
    partitions, spools = Marks(lake, log.topic).read()
    assert set(partitions) == {0, 1}
    assert {mark.at for mark in partitions.values()} == {report.watermark}, "by what is known of spools, not by a clock"
    assert [mark.closed for mark in spools.values()] == [True]
    # Another lander knows it from the lake alone; and of a partition that nobody has read yet, nothing is known.
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_partitions({log.topic: NewPartitions(total_count=3)})
    admin.close()
    from ingest.kafka_log import KafkaLog

    other = KafkaLog(log, lake)
    other._partitions = {0, 1}
    assert other.watermark() == report.watermark
    other._partitions = {0, 1, 2}
    assert other.watermark() == 0
    assert land(log=log, spool=root, lake=lake).watermark >= report.watermark


def test_partitions_that_are_added_later_lose_nothing(broker: Broker, tmp_path: Path):
    log, root, lake = settings(broker, partitions=1), tmp_path / "spool", tmp_path / "lake"
    living = fill(root, "a", 100)
    until(lambda: forward(root, log).close() or living.folder.shipped() == 200)
    land(log=log, spool=root, lake=lake)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_partitions({log.topic: NewPartitions(total_count=5)})
    admin.close()
    from tests.log_events import turn

    for i in range(100):
        living.append_sync([turn(f"later-{i}")])
    living.close()
    fill(root, "b", 50).close()
    until(lambda: forward(root, log).close() or not any(root.iterdir()))
    until(lambda: land(log=log, spool=root, lake=lake) and turns(lake) == 250)
    assert ids(lake) == sorted(names(("a", 100), ("b", 50)) + [f"later-{i}" for i in range(100)])


def test_what_retention_removed_before_it_landed_is_counted_and_told(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    log, root, lake = settings(broker, partitions=1), tmp_path / "spool", tmp_path / "lake"
    ensure_topic(log)
    living = fill(root, "a", 50)
    until(lambda: forward(root, log).close() or living.folder.shipped() == 100)
    from kafka import TopicPartition

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.delete_records({TopicPartition(log.topic, 0): 40})
    admin.close()
    report = land(log=log, spool=root, lake=lake)
    assert 30 < report.lost <= 40, "watermarks are no events"
    assert report.lost + report.rows[TURNS] + report.rows[FEEDBACK] == 100
    assert "40 records of partition 0 were removed before they were read" in caplog.text
    assert f"{report.lost} events were removed" in caplog.text
    living.close()
    until(lambda: forward(root, log).close() or not any(root.iterdir()))
    assert land(log=log, spool=root, lake=lake).lost == 0, "told once"
    assert turns(lake) == report.rows[TURNS]
