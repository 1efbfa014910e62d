"""A broker that is slow, restarted, full, away, or refuses a record: nothing is lost, the spools stay bounded, and who
must wait is told. What was acknowledged to a writer is on the topic once, as a reader gives it."""

import asyncio
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from ingest import forwarder as module
from ingest.forwarder import Forwarder
from ingest.kafka_broker import ready
from ingest.kafka_topic import TopicInfo, ensure_topic
from ingest.log import every, readable
from ingest.refused import refused_files, send_again
from ingest.spool import BrokerBehind, Spool, SpoolFull, folders
from tests.integration.serving_stack import running, wait_until
from tests.integration.test_kafka import forward, limit, noise, process, settings, until
from tests.kafka import Broker
from tests.log_events import turn

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

HI = [{"role": "user", "content": "hi"}]


def on_topic(log, root: Path) -> list[str]:
    """Turn ids on the topic, in order of each spool; `lost` for what stands there for one that is gone."""
    return [entry["event"]["turn_id"] if "event" in entry else "lost" for entry in map(readable, every(log, root))]


@contextmanager
def forwarding(root: Path, log) -> Iterator[None]:
    """A forwarder's process."""
    running_process = process(root, log)
    try:
        yield
    finally:
        running_process.terminate()
        assert running_process.wait(60) == 0


class Writer:
    """A thread that appends turns as fast as the spool takes them, and knows which were acknowledged."""

    def __init__(self, spool: Spool, size: int) -> None:
        self.acknowledged: list[str] = []
        self.full = 0
        """How often it was refused for want of room."""
        self._spool, self._size, self._stop = spool, size, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        noise_of = random.Random(1)
        while not self._stop.wait(0.01):
            name = f"w-{len(self.acknowledged)}-{self.full}"
            try:
                self._spool.append_sync([turn(name, request=noise_of.randbytes(self._size // 2).hex())])
            except SpoolFull:
                self.full += 1
            else:
                self.acknowledged.append(name)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.acknowledged


def test_a_broker_that_hangs_is_waited_for_within_the_bound(broker: Broker, tmp_path: Path):
    log, root = settings(broker), tmp_path / "spool"
    ensure_topic(log)
    spool = Spool.open(root, segment_bytes=200_000, segment_seconds=0.1, max_bytes=3_000_000)
    with forwarding(root, log):
        writer = Writer(spool, 20_000)
        until(lambda: spool.folder.shipped() > 10)
        with broker.hanging():
            until(lambda: writer.full > 3)
            assert sum(folder.size() for folder in folders(root)) < 2 * 3_000_000, (
                "SQLite's own pages beside the events"
            )
        refused = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > refused + 20)
        acknowledged = writer.stop()
        spool.close()
        until(lambda: not list(folders(root)))
    assert on_topic(log, root) == acknowledged


def test_a_broker_that_is_restarted_under_load_has_everything_once(broker: Broker, tmp_path: Path):
    log, root = settings(broker), tmp_path / "spool"
    ensure_topic(log)
    spool = Spool.open(root, segment_bytes=100_000, segment_seconds=0.1)
    with forwarding(root, log):
        writer = Writer(spool, 5_000)
        for round_ in range(2):
            before = spool.folder.shipped()
            until(lambda before=before: spool.folder.shipped() > before + 20)
            broker.kill(signal.SIGKILL if round_ else signal.SIGTERM)
            broker.start()
        acknowledged = writer.stop()
        spool.close()
        until(lambda: not list(folders(root)))
    assert on_topic(log, root) == acknowledged


def test_a_broker_whose_disk_is_full_costs_disk_here_and_no_event(tmp_path: Path):
    disk, ballast = tmp_path / "disk", tmp_path / "disk" / "ballast"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no tmpfs may be mounted here")
    full = Broker(disk / "kafka")
    try:
        full.start()
        log, root = settings(full, partitions=1), tmp_path / "spool"
        ensure_topic(log)
        spool = Spool.open(root, segment_bytes=500_000, segment_seconds=0.1)
        with forwarding(root, log):
            names = [f"t{i}" for i in range(60)]
            spool.append_sync([turn(name) for name in names[:10]])
            until(lambda: spool.folder.shipped() == 10)
            ballast.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - (2 << 20))))
            for name in names[10:]:
                spool.append_sync([turn(name, request=noise(100_000))])
            spool.close()
            until(lambda: not ready(full.port))  # Kafka ends when its only disk fails
            assert spool.folder.sealed()
            ballast.unlink()
            full.kill()
            full.start()
            until(lambda: not list(folders(root)))
        assert on_topic(log, root) == names
    finally:
        full.kill()
        subprocess.run(["umount", disk], check=True)


def test_a_record_that_the_broker_refuses_is_kept_and_holds_up_nobody(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log, root = settings(broker, partitions=1), tmp_path / "spool"
    before = ensure_topic(log)
    limit(broker, log.topic, 40_000)
    # The forwarder would send it in parts: here it goes by the limit of before, whatever the broker says.
    monkeypatch.setattr(module, "ensure_topic", lambda settings: TopicInfo(before.partitions, 1 << 20))
    spool = Spool.open(root)
    spool.append_sync([turn(f"a{i}") for i in range(20)])
    spool.append_sync([turn("large", request=noise(50_000)), *(turn(f"b{i}") for i in range(20))])
    spool.close()
    stop = threading.Event()
    forwarder = Forwarder(root, log, stop, every=0.1)
    thread = threading.Thread(target=forwarder.run)
    thread.start()
    until(lambda: not list(folders(root)))
    stop.set()
    thread.join()
    small = [f"a{i}" for i in range(20)], [f"b{i}" for i in range(20)]
    assert on_topic(log, root) == [*small[0], "lost", *small[1]]
    [kept] = refused_files(root)
    assert kept.name.endswith(f"{21:016d}")

    monkeypatch.undo()
    assert send_again(root) == 1
    forward(root, log).close()
    assert sorted(on_topic(log, root)) == sorted([*small[0], "lost", *small[1], "large"])


def test_an_append_waits_for_the_broker_where_that_counts(broker: Broker, tmp_path: Path):
    log, root = settings(broker), tmp_path / "spool"
    ensure_topic(log)
    spool = Spool.open(root, ack="broker")

    async def append(name: str, seconds: float) -> None:
        await spool.append([turn(name)], seconds)

    stop = threading.Event()
    forwarder = threading.Thread(target=Forwarder(root, log, stop, every=0.02).run)
    forwarder.start()
    asyncio.run(append("a", 60))
    assert on_topic(log, root) == ["a"], "it is there when the append returns"
    broker.kill()
    try:
        with pytest.raises(BrokerBehind):
            asyncio.run(append("b", 1))
    finally:
        broker.start()
    until(lambda: not spool.behind)
    asyncio.run(append("c", 60))
    spool.close()
    until(lambda: not list(folders(root)))
    stop.set()
    forwarder.join()
    assert on_topic(log, root) == ["a", "b", "c"], "what was not acknowledged in time comes all the same"


def test_a_gateway_whose_turns_need_the_broker_refuses_while_it_is_away(broker: Broker, tmp_path: Path):
    log = settings(broker)
    ensure_topic(log)
    with running(tmp_path) as stack, forwarding(tmp_path / "spool", log):
        stack.stop("gateway")
        stack.start_gateway("--ack", "broker", settings={"commit_seconds": 5.0})
        client = openai.OpenAI(base_url=f"{stack.gateway_url}/v1", api_key=stack.key(), max_retries=0, timeout=60)
        answered = [client.chat.completions.create(model="policy", messages=HI).id]
        assert answered == on_topic(log, tmp_path / "spool")
        broker.kill()
        try:
            for _ in range(2):  # after the wait, and at once
                with pytest.raises(openai.InternalServerError) as failed:
                    client.chat.completions.create(model="policy", messages=HI)
                assert failed.value.status_code == 503
                assert failed.value.body["code"] == "capture_failed"
                assert failed.value.response.headers["retry-after"]
            engine = stack.control("GET", "/v1/fleet").json()["engines"][0]["url"]
            assert len(httpx.get(f"{engine}/stand-in").json()["requests"]) == 2, "the second was not even generated"
            policy = stack.control("GET", "/v1/fleet").json()["policies"][0]
            stack.control("PUT", "/v1/policies/policy", {**policy, "capture": "best_effort"}).raise_for_status()
            stack.settle()
            answered.append(client.chat.completions.create(model="policy", messages=HI).id)
            lost = 'everloop_captures_lost_total{arm="champion",policy="policy",reason="broker_behind",version="base"}'
            assert stack.metrics()[lost] >= 1
        finally:
            broker.start()
        wait_until(lambda: set(answered) <= set(on_topic(log, tmp_path / "spool")), "what was answered meanwhile")
        stack.control("PUT", "/v1/policies/policy", {**policy, "capture": "required"}).raise_for_status()
        stack.settle()
        answered.append(client.chat.completions.create(model="policy", messages=HI).id)
        topic = on_topic(log, tmp_path / "spool")
        assert set(answered) <= set(topic)
        assert len(topic) == len(set(topic)) == 4, "each turn once, and that whose caller saw a 503 too"
