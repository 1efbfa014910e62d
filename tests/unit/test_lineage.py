"""Which checkpoint the next run continues from."""

import msgspec
import pytest

from pipelines.lineage import Origin, origin
from pipelines.records import Outcome, Run, RunState, Stage, StageRecord, StageState


def ended(number: int, outcome: Outcome | None, champion: str = "base", look: int = 1, state=RunState.DONE) -> Run:
    lineage = StageRecord(
        stage=Stage.LINEAGE,
        state=StageState.FINISHED,
        attempts=1,
        started_at=0.0,
        result={"champion": champion, "look": look},
    )
    return Run(
        run_id=f"r{number}",
        policy="p",
        number=number,
        state=state,
        started_at=0.0,
        updated_at=0.0,
        outcome=outcome,
        stages=() if outcome == Outcome.GATE_FAILED else (lineage,),
    )


H, R, P, G, T = Outcome.HELD, Outcome.REJECTED, Outcome.PROMOTED, Outcome.GATE_FAILED, Outcome.TRAINING_STOPPED


def where(champion: str, *newest_first: Run) -> tuple[str, int]:
    found: Origin = origin(newest_first, champion, max_holds=3)
    assert found.champion == champion
    return found.parent, found.look


def test_the_first_run_starts_at_the_champion() -> None:
    assert where("base") == ("base", 1)


def test_promoted_continues_from_it() -> None:
    assert where("c1", ended(1, P)) == ("c1", 1)


def test_held_continues_from_the_challenger_with_one_more_look() -> None:
    assert where("base", ended(1, H)) == ("c1", 2)
    assert where("base", ended(2, H, look=2), ended(1, H)) == ("c2", 3)
    assert where("base", ended(3, H, look=3), ended(2, H, look=2), ended(1, H)) == ("c3", 4)


def test_held_too_often_goes_back_to_the_champion() -> None:
    runs = [ended(n, H, look=n) for n in (4, 3, 2, 1)]
    assert where("base", *runs) == ("base", 1)


def test_a_new_lineage_after_too_many_holds_counts_from_one() -> None:
    runs = [ended(5, H, look=1), *(ended(n, H, look=n) for n in (4, 3, 2, 1))]
    assert where("base", *runs) == ("c5", 2)


@pytest.mark.parametrize("outcome", [R, T])
def test_rejected_or_stopped_goes_back_to_the_champion(outcome: Outcome) -> None:
    assert where("base", ended(2, outcome, look=2), ended(1, H)) == ("base", 1)
    assert where("c1", ended(2, outcome, "c1"), ended(1, P)) == ("c1", 1)


def test_a_hold_before_a_rejection_is_forgotten() -> None:
    assert where("base", ended(3, H), ended(2, R, look=2), ended(1, H)) == ("c3", 2)


def test_a_failed_gate_and_an_abandoned_run_say_nothing() -> None:
    assert where("base", ended(3, G), ended(2, None, state=RunState.ABANDONED), ended(1, H)) == ("c1", 2)


@pytest.mark.parametrize(("decision", "expected"), [("hold", ("c2", 3)), ("reject", ("base", 1))])
def test_a_run_given_up_after_its_evaluation_counts_by_its_verdict(decision: str, expected: tuple[str, int]) -> None:
    given_up = ended(2, None, look=2, state=RunState.ABANDONED)
    looked = StageRecord(
        stage=Stage.EVALUATE,
        state=StageState.FINISHED,
        attempts=1,
        started_at=0.0,
        result={"decision": decision},
    )
    given_up = msgspec.structs.replace(given_up, stages=(*given_up.stages, looked))
    assert where("base", given_up, ended(1, H)) == expected


def test_a_person_who_moved_the_champion_starts_a_new_lineage() -> None:
    assert where("c7", ended(8, H, champion="base")) == ("c7", 1)
    # The held challenger itself was promoted by hand.
    assert where("c1", ended(1, H)) == ("c1", 1)


def test_rolled_back_after_a_promotion_continues_from_what_serves() -> None:
    assert where("base", ended(1, P)) == ("base", 1)


def test_a_canary_is_kept_as_a_hold_is() -> None:
    assert where("base", ended(1, Outcome.CANARY)) == ("c1", 2)
