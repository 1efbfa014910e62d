"""The parent of a gateway's workers: what it does between a worker's death and its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.serving_stack import wait_until

pytestmark = pytest.mark.integration
PARENT = """
import logging, os, sys, time
from serving.gateway.workers import CannotStart, supervise
def work(index):
    open(f"{sys.argv[1]}/{index}-{os.getpid()}", "w").close()
    WORK
logging.basicConfig()
try:
    supervise(2, work, restart_seconds=float(sys.argv[2]))
except CannotStart as error:
    sys.exit(str(error))
"""


@contextmanager
def parent(folder: Path, restart_seconds: float, work: str = "time.sleep(600)") -> Iterator[subprocess.Popen]:
    folder.mkdir()
    code = PARENT.replace("WORK", work)
    with (folder.parent / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", code, str(folder), str(restart_seconds)], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started(folder: Path) -> list[tuple[int, int]]:
    """(index, process id) of every worker that ever started."""
    found = [path.name.partition("-") for path in folder.iterdir()]
    return [(int(index), int(pid)) for index, _, pid in found]


def died(folder: Path) -> bool:
    return "died" in (folder.parent / "log").read_text()


def test_asked_to_end_while_a_worker_waits_to_be_started_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    with parent(folder, restart_seconds=600) as process:
        wait_until(lambda: len(started(folder)) == 2, "two workers")
        os.kill(started(folder)[0][1], signal.SIGKILL)
        wait_until(lambda: died(folder), "the parent's word of it")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert len(started(folder)) == 2


def test_workers_that_die_at_once_are_all_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    with parent(folder, restart_seconds=0.1) as process:
        wait_until(lambda: len(started(folder)) == 2, "two workers")
        for _, pid in started(folder):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sorted(index for index, _ in started(folder)) == [0, 0, 1, 1], "two new ones")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_a_worker_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    both = "while len(os.listdir(sys.argv[1])) < 2: time.sleep(0.01)"
    work = f"{both}\n    if index == 1: raise CannotStart('no room')\n    time.sleep(600)"
    with parent(folder, restart_seconds=600, work=work) as process:
        assert process.wait(120) == 1
    assert "no room" in (tmp_path / "log").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(dict(started(folder))[0], 0)


def test_a_worker_that_cannot_be_started_again_is_tried_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    mine = "mine = [name for name in os.listdir(sys.argv[1]) if name.startswith(f'{index}-')]"
    work = f"{mine}\n    if 1 < len(mine) < 4: raise CannotStart('no room')\n    time.sleep(600)"
    with parent(folder, restart_seconds=0.05, work=work) as process:
        wait_until(lambda: len(started(folder)) == 2, "two workers")
        first = dict(started(folder))
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: len(started(folder)) == 5, "three more starts")
        os.kill(first[1], 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    told = (tmp_path / "log").read_text()
    assert told.count("worker 0 cannot start: no room") == 2
    assert [pause in told for pause in ("in 0.05 s", "in 0.1 s", "in 0.2 s", "in 0.4 s")] == [True, True, True, False]
