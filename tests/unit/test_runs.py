"""The run history keeps its transition tables, and tells what it was told."""

from pathlib import Path

import pytest

from pipelines.errors import PipelineError
from pipelines.records import RUN_TRANSITIONS, STAGE_TRANSITIONS, RunState, Stage, StageState
from pipelines.runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "pipelines.db", clock=lambda: 5.0)


def test_tables_name_every_state() -> None:
    assert set(RUN_TRANSITIONS) == set(RunState)
    assert set(STAGE_TRANSITIONS) == set(StageState)


def test_a_finished_stage_is_never_begun_again(runs: Runs) -> None:
    run = runs.create("p")
    runs.begin(run.run_id, Stage.LAND)
    runs.end(run.run_id, Stage.LAND, StageState.FINISHED, {"ready": 4})
    with pytest.raises(PipelineError, match="is finished and cannot become running"):
        runs.begin(run.run_id, Stage.LAND)
    assert runs.get(run.run_id).result(Stage.LAND) == {"ready": 4}


def test_a_run_that_is_done_stays_done(runs: Runs) -> None:
    run = runs.create("p")
    runs.move(run.run_id, RunState.DONE)
    with pytest.raises(PipelineError, match="is done and cannot become running"):
        runs.move(run.run_id, RunState.RUNNING)


def test_progress_is_the_running_stages_own(runs: Runs) -> None:
    run = runs.create("p")
    runs.begin(run.run_id, Stage.TRAIN)
    runs.progress(run.run_id, Stage.TRAIN, {"step": 3})
    record = runs.get(run.run_id).stage(Stage.TRAIN)
    assert record is not None
    assert record.progress == {"step": 3}
    runs.end(run.run_id, Stage.TRAIN, StageState.FINISHED, {})
    runs.progress(run.run_id, Stage.TRAIN, {"step": 9})
    record = runs.get(run.run_id).stage(Stage.TRAIN)
    assert record is not None
    assert record.progress == {"step": 3}


def test_requests_are_taken_once(runs: Runs) -> None:
    runs.request("p")
    runs.request("p", min_turns=3)
    assert runs.requested("p")
    assert runs.take_requests() == {"p": 3}
    assert runs.take_requests() == {}
    assert not runs.requested("p")


def test_an_unknown_run_is_a_sentence(runs: Runs) -> None:
    with pytest.raises(PipelineError, match='there is no run "r9"'):
        runs.get("r9")
