"""Which checkpoint the next run continues from."""

import pytest

from evaluation.statistics import spend
from pipelines.lineage import Origin, origin
from pipelines.records import Outcome, Run, RunState, Stage, StageRecord, StageState


def record(stage: Stage, **result: object) -> StageRecord:
    return StageRecord(stage=stage, state=StageState.FINISHED, attempts=1, started_at=0.0, result=result)


def ended(
    number: int,
    outcome: Outcome | None,
    champion: str = "base",
    parent: str | None = None,
    state: RunState = RunState.DONE,
    stages: tuple[StageRecord, ...] | None = None,
) -> Run:
    """A run that made c<number> from `parent` (default: the champion) and looked at it, unless `stages` say else."""
    if stages is None:
        began = record(Stage.LINEAGE, champion=champion, parent=parent or champion)
        stages = () if outcome == Outcome.GATE_FAILED else (began, record(Stage.EVALUATE))
    return Run(
        run_id=f"r{number}",
        policy="p",
        number=number,
        state=state,
        started_at=0.0,
        updated_at=0.0,
        outcome=outcome,
        stages=stages,
    )


H, R, P, G, T = Outcome.HELD, Outcome.REJECTED, Outcome.PROMOTED, Outcome.GATE_FAILED, Outcome.TRAINING_STOPPED
HELD_ONCE = (ended(1, H),)
HELD_TWICE = (ended(2, H, parent="c1"), *HELD_ONCE)
HELD_THRICE = (ended(3, H, parent="c2"), *HELD_TWICE)
HELD_TOO_OFTEN = (ended(4, H, parent="c3"), *HELD_THRICE)


def where(champion: str, *newest_first: Run) -> tuple[str, int]:
    found: Origin = origin(newest_first, champion, max_holds=3)
    assert found.champion == champion
    return found.parent, found.holds


def test_the_first_run_starts_at_the_champion() -> None:
    assert where("base") == ("base", 0)


def test_promoted_continues_from_it() -> None:
    assert where("c1", ended(1, P)) == ("c1", 0)


def test_held_continues_from_the_challenger() -> None:
    assert where("base", *HELD_ONCE) == ("c1", 1)
    assert where("base", *HELD_TWICE) == ("c2", 2)
    assert where("base", *HELD_THRICE) == ("c3", 3)


def test_held_too_often_goes_back_to_the_champion() -> None:
    assert where("base", *HELD_TOO_OFTEN) == ("base", 0)


def test_a_new_lineage_after_too_many_holds_counts_its_own() -> None:
    assert where("base", ended(5, H), *HELD_TOO_OFTEN) == ("c5", 1)


@pytest.mark.parametrize("outcome", [R, T, Outcome.ROLLED_BACK])
def test_rejected_rolled_back_or_stopped_goes_back_to_the_champion(outcome: Outcome) -> None:
    assert where("base", ended(2, outcome, parent="c1"), *HELD_ONCE) == ("base", 0)
    assert where("c1", ended(2, outcome, "c1"), ended(1, P)) == ("c1", 0)


def test_a_hold_before_a_rejection_is_forgotten() -> None:
    assert where("base", ended(3, H), ended(2, R, parent="c1"), *HELD_ONCE) == ("c3", 1)


def test_looks_are_counted_over_the_policys_life() -> None:
    """A promotion, a rejection and a hold each spent one, whichever champion it was against."""
    assert origin((), "base", 3).look == 1
    runs = [ended(4, H, "c2"), ended(3, R, "c2"), ended(2, P, "base", parent="c1"), ended(1, H)]
    assert origin(runs, "c2", 3).look == 5
    assert sum(spend(0.1, look, "series") for look in range(1, 6)) < 0.1


def test_a_look_that_was_begun_is_spent_and_one_that_was_not_is_not() -> None:
    began = record(Stage.LINEAGE, champion="base", parent="base")
    failed = StageRecord(stage=Stage.EVALUATE, state=StageState.FAILED, attempts=5, started_at=0.0)
    moved = record(Stage.EVALUATE, ended="held", reason="another champion")
    given_up = ended(3, None, state=RunState.ABANDONED, stages=(began, failed))
    before_it = ended(2, H, stages=(began, moved))
    assert origin([given_up, before_it, ended(1, G)], "base", 3).look == 2


def test_a_failed_gate_and_an_abandoned_run_say_nothing() -> None:
    assert where("base", ended(3, G), ended(2, None, state=RunState.ABANDONED), *HELD_ONCE) == ("c1", 1)


@pytest.mark.parametrize(("decision", "expected"), [("hold", ("c2", 2)), ("reject", ("base", 0))])
def test_a_run_given_up_after_its_evaluation_counts_by_its_verdict(decision: str, expected: tuple[str, int]) -> None:
    began = record(Stage.LINEAGE, champion="base", parent="c1")
    stages = (began, record(Stage.EVALUATE, decision=decision))
    assert where("base", ended(2, None, state=RunState.ABANDONED, stages=stages), *HELD_ONCE) == expected


def test_a_person_who_moved_the_champion_starts_a_new_lineage() -> None:
    assert where("c7", ended(8, H, champion="base")) == ("c7", 0)
    # The held challenger itself was promoted by hand.
    assert where("c1", *HELD_ONCE) == ("c1", 0)


def test_rolled_back_after_a_promotion_continues_from_what_serves() -> None:
    assert where("base", ended(1, P)) == ("base", 0)


def test_a_canary_is_kept_as_a_hold_is() -> None:
    assert where("base", ended(1, Outcome.CANARY)) == ("c1", 1)
