"""The scheduler's jobs survive it, and follow the configuration."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.config import Config, load
from pipelines.home import Home
from pipelines.lease import holder_of
from pipelines.schedule import LEASE, build, job_id, sync_jobs
from pipelines.stack.status import next_looks
from tests.unit.test_config import GOOD

pytestmark = pytest.mark.integration


def until(done: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "everloop.toml"
    path.write_text(GOOD.replace("every_seconds = 5", "every_seconds = 3600"))
    return path


def synced(config: Config, config_path: Path) -> dict[str, float]:
    """Next looks by policy after one scheduler came and went."""
    database = Home.of(config).database
    database.parent.mkdir(parents=True, exist_ok=True)
    scheduler = build(config, config_path, database)
    scheduler.start(paused=True)
    sync_jobs(scheduler, config, config_path)
    scheduler.shutdown()
    return next_looks(database)


def test_a_job_keeps_its_next_time_until_its_trigger_changes(config_path: Path) -> None:
    config = load(config_path, {})
    first = synced(config, config_path)
    assert set(first) == {"helper"}
    assert synced(config, config_path) == first
    sooner = load(config_path, {"EVERLOOP__POLICIES__HELPER__SCHEDULE__EVERY_SECONDS": "60"})
    second = synced(sooner, config_path)
    assert second["helper"] < first["helper"]


def test_a_policy_without_a_trigger_has_no_job(config_path: Path) -> None:
    assert set(synced(load(config_path, {}), config_path)) == {"helper"}
    config_path.write_text(config_path.read_text().replace("every_seconds = 3600", ""))
    assert synced(load(config_path, {}), config_path) == {}


def test_cron_is_a_trigger(config_path: Path) -> None:
    config_path.write_text(config_path.read_text().replace("every_seconds = 3600", 'cron = "0 3 * * *"'))
    assert set(synced(load(config_path, {}), config_path)) == {"helper"}
    assert job_id("helper") == "loop-helper"


def test_a_standby_takes_over_and_sigterm_gives_the_lease_up(config_path: Path, tmp_path: Path) -> None:
    database = Home.of(load(config_path, {})).database
    command = [sys.executable, "-m", "pipelines.schedule", "--config", str(config_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return processes[-1]

    def holds(process: subprocess.Popen[bytes]) -> bool:
        holder = holder_of(database, LEASE, time.time())
        return holder is not None and holder.split(":")[-2] == str(process.pid)

    try:
        first = start("first.log")
        until(lambda: holds(first))
        second = start("second.log")
        until(lambda: "waiting for the lease" in (tmp_path / "second.log").read_text())
        assert holds(first)
        first.kill()
        until(lambda: holds(second))
        second.send_signal(signal.SIGTERM)
        assert second.wait(120) == 0
        told = [json.loads(line)["message"] for line in (tmp_path / "second.log").read_text().splitlines()]
        assert told[0] == "waiting for the lease"
        assert holder_of(database, LEASE, time.time()) is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
