"""The flow with scripted stages: nothing is done twice, whatever it was killed between or within."""

from pathlib import Path

import pytest

from pipelines.errors import PipelineError, RunBusy
from pipelines.flow import Ended, Flow
from pipelines.records import Outcome, Run, RunState, Stage, StageState
from pipelines.runs import MAX_ATTEMPTS, Runs

STAGES = [str(stage) for stage in Stage]


class Killed(BaseException):
    """Stands for kill -9: nothing of the flow may run after it, so nothing catches it."""


class Scripted:
    """Stages that note what they did; `kill` dies before or after a stage's work, `fail` raises in it."""

    def __init__(
        self, kill: str = "", after: bool = False, fail: str = "", ready: int = 100, decision: str = "promote"
    ):
        self.done: list[str] = []
        self.kill, self.after, self.fail, self.ready, self.decision = kill, after, fail, ready, decision

    def _work(self, stage: str, result: dict) -> dict:
        if self.kill == stage and not self.after:
            raise Killed
        if self.fail == stage:
            raise PipelineError(f"{stage} could not")
        self.done.append(stage)
        if self.kill == stage:
            raise Killed
        return result

    def land(self, run: Run) -> dict:
        return self._work("land", {"ready": self.ready})

    def freeze(self, run: Run, landed: dict) -> dict:
        return self._work("freeze", {"dataset": run.dataset_id})

    def gate(self, run: Run) -> dict:
        return self._work("gate", {})

    def lineage(self, run: Run) -> dict:
        return self._work("lineage", {"parent": "base", "champion": "base", "look": 1})

    def train(self, run: Run, origin: dict) -> dict:
        return self._work("train", {"checkpoint_id": run.checkpoint_id})

    def register(self, run: Run) -> dict:
        return self._work("register", {"model_version": 2})

    def evaluate(self, run: Run, origin: dict) -> dict:
        return self._work("evaluate", {"decision": self.decision})

    def decide(self, run: Run, verdict: dict) -> dict:
        result = self._work("decide", {"promoted": run.checkpoint_id})
        if verdict["decision"] == "hold":
            raise Ended(Outcome.HELD, "the interval holds 0")
        return result

    def roll_out(self, run: Run, decided: dict) -> dict:
        return self._work("roll_out", {"swaps": []})


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "pipelines.db")


def flow(runs: Runs, stages: Scripted, stopping: bool = False) -> Flow:
    return Flow("p", stages, runs, runs.path.parent / "p.lock", lambda: stopping)


def test_a_run_does_every_stage_once_in_order(runs: Runs) -> None:
    stages = Scripted()
    run = flow(runs, stages).run(min_turns=10)
    assert stages.done == STAGES
    assert (run.state, run.outcome) == (RunState.DONE, Outcome.PROMOTED)
    assert [s.stage for s in run.stages] == list(Stage)
    assert run.finished_at is not None


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("after", [False, True], ids=["before-the-work", "after-the-work"])
def test_a_killed_run_goes_on_from_its_last_finished_stage(runs: Runs, stage: str, after: bool) -> None:
    first = Scripted(kill=stage, after=after)
    with pytest.raises(Killed):
        flow(runs, first).run(min_turns=10)
    killed = runs.history("p")[0]
    assert killed.state == RunState.RUNNING

    second = Scripted()
    run = flow(runs, second).run(min_turns=10)
    at = STAGES.index(stage)
    # What had finished is not done again; the stage that was cut is, for nobody knows how far it came.
    assert second.done == STAGES[at:]
    assert first.done == STAGES[: at + after]
    assert run.run_id == killed.run_id
    assert run.outcome == Outcome.PROMOTED
    assert len(runs.history("p")) == 1


def test_a_run_killed_again_and_again_still_ends(runs: Runs) -> None:
    for stage in STAGES:
        with pytest.raises(Killed):
            flow(runs, Scripted(kill=stage)).run(min_turns=10)
    assert flow(runs, Scripted()).run(min_turns=10).outcome == Outcome.PROMOTED
    assert len(runs.history("p")) == 1


def test_a_run_killed_between_its_last_stage_and_its_end_ends(runs: Runs) -> None:
    stages = Scripted(decision="hold")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "_close", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            flow(runs, stages).run(min_turns=10)
    again = Scripted()
    run = flow(runs, again).run(min_turns=10)
    assert again.done == []
    assert (run.outcome, run.reason) == (Outcome.HELD, "the interval holds 0")


def test_too_few_turns_wait_and_the_run_is_the_same_when_they_suffice(runs: Runs) -> None:
    few = Scripted(ready=3)
    waiting = flow(runs, few).run(min_turns=10)
    assert (waiting.state, few.done) == (RunState.WAITING, ["land"])
    assert waiting.reason == "3 of 10 turns are ready"
    for _ in range(MAX_ATTEMPTS + 2):
        assert flow(runs, Scripted(ready=4)).run(min_turns=10).run_id == waiting.run_id
    enough = Scripted(ready=11)
    run = flow(runs, enough).run(min_turns=10)
    assert run.run_id == waiting.run_id
    assert enough.done == STAGES
    assert len(runs.history("p")) == 1


def test_an_early_end_says_why_and_later_stages_are_left_out(runs: Runs) -> None:
    stages = Scripted(decision="hold")
    run = flow(runs, stages).run(min_turns=10)
    assert (run.state, run.outcome, run.reason) == (RunState.DONE, Outcome.HELD, "the interval holds 0")
    assert stages.done == STAGES[:-1]
    assert flow(runs, Scripted()).run(min_turns=10).run_id != run.run_id


def test_a_failed_stage_is_tried_again_then_the_run_is_abandoned(runs: Runs) -> None:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        run = flow(runs, Scripted(fail="train")).run(min_turns=10)
        assert (run.state, run.reason) == (RunState.FAILED, "train could not")
        record = run.stage(Stage.TRAIN)
        assert record is not None
        assert (record.attempts, record.state) == (attempt, StageState.FAILED)
    following = flow(runs, Scripted()).run(min_turns=10)
    assert following.run_id != run.run_id
    abandoned = runs.get(run.run_id)
    assert abandoned.state == RunState.ABANDONED
    assert "train was tried 5 times: train could not" in abandoned.reason


def test_a_failed_run_is_mended_by_its_next_look(runs: Runs) -> None:
    failed = flow(runs, Scripted(fail="evaluate")).run(min_turns=10)
    stages = Scripted()
    run = flow(runs, stages).run(min_turns=10)
    assert run.run_id == failed.run_id
    assert stages.done == ["evaluate", "decide", "roll_out"]


def test_a_process_that_is_asked_to_stop_begins_no_stage(runs: Runs) -> None:
    stages = Scripted()
    run = flow(runs, stages, stopping=True).run(min_turns=10)
    assert (run.state, stages.done) == (RunState.INTERRUPTED, [])
    assert flow(runs, Scripted()).run(min_turns=10).outcome == Outcome.PROMOTED


def test_a_stage_stopped_within_is_interrupted_and_its_attempt_does_not_count(runs: Runs) -> None:
    class Stopped(Scripted):
        stopping = False

        def train(self, run: Run, origin: dict) -> dict:
            self.stopping = True
            raise PipelineError("its worker was ended")

    for _ in range(MAX_ATTEMPTS + 1):
        stages = Stopped()
        asked = Flow("p", stages, runs, runs.path.parent / "p.lock", lambda stages=stages: stages.stopping)
        run = asked.run(min_turns=10)
        assert (run.state, run.reason) == (RunState.INTERRUPTED, "stopped within train")
    assert flow(runs, Scripted()).run(min_turns=10).run_id == run.run_id


def test_one_process_at_a_time_works_on_a_policy(runs: Runs) -> None:
    class Nested(Scripted):
        def gate(self, run: Run) -> dict:
            with pytest.raises(RunBusy, match="another process"):
                flow(runs, Scripted()).run(min_turns=10)
            return super().gate(run)

    assert flow(runs, Nested()).run(min_turns=10).outcome == Outcome.PROMOTED


def test_ids_of_a_run_belong_together(runs: Runs) -> None:
    run = runs.create("p")
    assert run.run_id[1:] == run.dataset_id[1:] == run.checkpoint_id[1:]
    assert (run.dataset_id[0], run.checkpoint_id[0]) == ("d", "c")
    assert run.run_id.startswith("r0001-")
    assert runs.create("q").number == 1
    assert runs.create("p").number == 2
