"""`everloop run` with a scheduler: it asks, watches, and comes back with how the run stands."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.cli.follow import follow
from pipelines.errors import PipelineError
from pipelines.records import Outcome, RunState, Stage, StageState
from pipelines.runs import Runs


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "pipelines.db", clock=Clock())


def script(*steps: Callable[[], object]) -> Callable[[float], None]:
    """A sleep that lets the world go on by one step each time."""
    left = list(steps)

    def sleep(seconds: float) -> None:
        left.pop(0)()

    return sleep


def test_it_tells_the_stages_and_comes_back_with_the_end(runs: Runs) -> None:
    before = runs.create("p")
    runs.move(before.run_id, RunState.DONE, "old", Outcome.HELD)
    runs.request("p")
    since = runs._clock()
    said: list[str] = []

    def take() -> None:
        runs.take_requests()
        runs.begin(runs.create("p").run_id, Stage.LAND)

    def land() -> None:
        runs.end(runs.history("p", 1)[0].run_id, Stage.LAND, StageState.FINISHED, {"ready": 9})
        runs.begin(runs.history("p", 1)[0].run_id, Stage.FREEZE)

    def end() -> None:
        runs.move(runs.history("p", 1)[0].run_id, RunState.DONE, "better", Outcome.PROMOTED)

    run = follow(runs, "p", since, said.append, lambda: True, script(lambda: None, take, land, end))
    assert (run.number, run.outcome) == (2, Outcome.PROMOTED)
    assert said == [f"{run.run_id}: land", f"{run.run_id}: freeze"]


def test_a_scheduler_that_ends_is_a_sentence(runs: Runs) -> None:
    runs.request("p")
    with pytest.raises(PipelineError, match="the scheduler ended"):
        follow(runs, "p", 0.0, lambda said: None, lambda: False)
