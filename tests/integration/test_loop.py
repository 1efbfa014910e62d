"""The loop with real workers and scripted stages: stopped within a stage, and gone on with by the next process."""

import threading
import time
from pathlib import Path

import pytest

from pipelines.config import load
from pipelines.home import Home
from pipelines.local import Loop
from pipelines.records import Outcome, Run, RunState, StageState
from pipelines.stack import addresses
from pipelines.workers import Workers
from tests.unit.test_config import GOOD
from tests.unit.test_flow import Scripted

pytestmark = pytest.mark.integration


class Lingering(Scripted):
    """Training takes for ever, in a worker."""

    def __init__(self, workers: Workers, note: Path) -> None:
        super().__init__()
        self.workers, self.note = workers, note

    def train(self, run: Run, origin: dict) -> dict:
        return self.workers.call("trainer", "tests.integration.scripted:linger", note=self.note)


def test_a_loop_that_is_stopped_within_a_stage_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "everloop.toml").write_text(GOOD)
    config = load(tmp_path / "everloop.toml", {})
    home = Home.of(config).create()
    addresses.choose(config, home, kafka=False)
    note = tmp_path / "pid"
    loop = Loop(config, home, lambda *parts: Lingering(parts[6], note))
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(loop.run("helper", 10)))
    thread.start()
    deadline = time.monotonic() + 120
    while not note.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    loop.stop(grace=0.2)
    thread.join(60)
    (stopped,) = runs
    assert (stopped.state, stopped.reason) == (RunState.INTERRUPTED, "stopped within train")
    assert stopped.stages[-1].state == StageState.INTERRUPTED
    assert not Path(f"/proc/{note.read_text()}").exists()

    stages = Scripted()
    following = Loop(config, home, lambda *parts: stages).run("helper", 10)
    assert (following.run_id, following.outcome) == (stopped.run_id, Outcome.PROMOTED)
    assert stages.done == ["train", "register", "evaluate", "decide", "roll_out"]
