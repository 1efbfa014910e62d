"""One real broker for all tests of a session: the fixture `broker`, known to every test by `conftest.py`.

Tests share it, so each makes topics of its own names.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.kafka_broker import command, configure, missing, prepare, ready
from pipelines.stack.addresses import free_port


class Broker:
    """A broker that can be killed and started again on the same port and data."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._home = home
        self.data = home / "data"
        self._libs = prepare()
        self._properties = configure(home, self.port, free_port(), self._libs)
        with self._properties.open("a") as properties:  # nobody waits five minutes for what a topic no longer keeps
            properties.write("log.initial.task.delay.ms=1000\nlog.retention.check.interval.ms=1000\n")
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with (self._home / "broker.log").open("ab") as output:
            line = command(self._properties, self._libs)
            self._process = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)
        end = time.monotonic() + 300  # a minute, where the machine has much else to do
        while not ready(self.port):
            assert self._process.poll() is None, (self._home / "broker.log").read_text()[-3000:]
            assert time.monotonic() < end, "the broker does not answer"
            time.sleep(0.1)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """kill -9, or another signal that ends it."""
        if self._process is not None:
            os.kill(self._process.pid, number)
            self._process.wait()
            self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections meanwhile, and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A running broker; killed and its data removed at the end of the session."""
    assert missing() is None, missing()
    home = Path(tempfile.mkdtemp(prefix="everloop-kafka-"))
    running = Broker(home)
    running.start()
    yield running
    running.kill()
    shutil.rmtree(home)
