"""After a failure the loop waits, longer each time; otherwise not at all."""

from pipelines.pace import LONGEST_SECONDS, not_before
from pipelines.records import Outcome, Run, RunState, Stage, StageRecord, StageState


def run(state: RunState, outcome: Outcome | None = None, attempts: int = 1) -> Run:
    stage = StageRecord(stage=Stage.TRAIN, state=StageState.FAILED, attempts=attempts, started_at=0)
    return Run(
        run_id="r1",
        policy="p",
        number=1,
        state=state,
        started_at=0,
        updated_at=1000.0,
        outcome=outcome,
        stages=(stage,),
    )


GATE = run(RunState.DONE, Outcome.GATE_FAILED)
HELD = run(RunState.DONE, Outcome.HELD)


def test_what_was_in_order_is_not_waited_for() -> None:
    assert not_before([], 30) == 0
    for last in (HELD, run(RunState.WAITING), run(RunState.RUNNING), run(RunState.INTERRUPTED)):
        assert not_before([last, GATE], 30) == 0


def test_a_failed_stage_is_tried_later_each_time() -> None:
    assert not_before([run(RunState.FAILED)], 30) == 1030
    assert not_before([run(RunState.FAILED, attempts=3)], 30) == 1120


def test_a_rollback_is_waited_after_as_a_failed_gate_is() -> None:
    rolled_back = run(RunState.DONE, Outcome.ROLLED_BACK)
    assert not_before([rolled_back, HELD], 30) == 1030
    assert not_before([rolled_back, rolled_back, HELD], 30) == 1060


def test_gates_that_fail_in_a_row_are_asked_ever_more_seldom() -> None:
    assert not_before([GATE, HELD, GATE], 30) == 1030
    assert not_before([GATE, run(RunState.ABANDONED), GATE, HELD], 30) == 1120
    assert not_before([GATE] * 100, 30) == 1000 + LONGEST_SECONDS
