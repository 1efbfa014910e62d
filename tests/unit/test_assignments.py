"""Swaps in turn: which engine is told what, and the table of engine states."""

import msgspec
import pytest

from ingest.contracts.fleet import ENGINE_TRANSITIONS, Engine, EngineState, Policy, Refusal, Version
from serving.fleet.assignments import Placed, converged, may_become, target_of

OLD, NEW, CHALLENGER = Version("v1", "/v1"), Version("v2", "/v2"), Version("v3", "/v3")
POLICY = Policy(name="p", desired=NEW)


def placed(name: str, *, state: str = "ready", version: str = "v1", target: Version | None = OLD, **more) -> Placed:
    engine = Engine(
        engine_id=name, policy="p", url="", token="", state=EngineState(state), version=version, build="b", **more
    )
    return Placed(engine, target)


REFUSED = Refusal(version="v2", error="the reference was not reproduced")


def test_the_first_engine_gets_the_turn_and_the_others_wait() -> None:
    a, b = placed("a"), placed("b")
    assert target_of(a, POLICY, [b], hot=True) == NEW
    assert target_of(b, POLICY, [placed("a", target=NEW)], hot=True) is None
    assert target_of(b, POLICY, [placed("a", state="swapping", target=NEW)], hot=True) is None
    assert target_of(placed("b", target=None), POLICY, [placed("a", target=NEW)], hot=True) is None


@pytest.mark.parametrize(
    "other",
    [
        placed("a", version="v2", target=NEW),
        placed("a", state="failed", target=NEW),
        placed("a", state="lost", target=NEW),
        placed("a", target=NEW, refusal=REFUSED),
        placed("a", target=None, refusal=REFUSED),
    ],
)
def test_the_turn_passes_on_when_the_engine_is_ready_or_gave_up(other: Placed) -> None:
    for hot in (True, False):
        assert target_of(placed("b"), POLICY, [other], hot=hot) == NEW


def test_an_engine_that_refuses_waits_for_another_turn() -> None:
    refusing = placed("a", target=NEW, refusal=REFUSED)
    willing = placed("a", target=None, refusal=msgspec.structs.replace(REFUSED, standing=False))
    other = placed("a", target=None, refusal=msgspec.structs.replace(REFUSED, version="v0"))
    for hot in (True, False):
        assert target_of(refusing, POLICY, [placed("b")], hot=hot) is None
        for asking in (willing, other):
            assert target_of(asking, POLICY, [placed("b")], hot=hot) == NEW
            assert target_of(asking, POLICY, [placed("b", target=NEW)], hot=hot) is None
    begun = placed("b", target=NEW, refusal=msgspec.structs.replace(REFUSED, standing=False))
    assert target_of(placed("c"), POLICY, [begun], hot=True) is None


@pytest.mark.parametrize("state", ["joining", "draining"])
def test_an_engine_without_a_reference_stays_while_another_comes_or_goes(state: str) -> None:
    away = placed("a", state=state, version="", target=NEW)
    ready = placed("c", version="v2", target=NEW)
    assert target_of(placed("b"), POLICY, [away, ready], hot=False) is None
    assert target_of(placed("b"), POLICY, [away, ready], hot=True) == NEW
    assert target_of(placed("b", target=NEW), POLICY, [away, ready], hot=False) == NEW  # it may have left already
    evaluating = placed("a", state=state, version="", target=NEW, role="evaluation")
    assert target_of(placed("b"), POLICY, [evaluating], hot=False) == NEW


def test_an_only_engine_may_leave_service() -> None:
    assert target_of(placed("a"), POLICY, [], hot=False) == NEW


def test_the_turn_stays_taken_when_another_version_is_desired_meanwhile() -> None:
    newer = msgspec.structs.replace(POLICY, desired=CHALLENGER)
    swapping = placed("a", state="swapping", target=NEW)
    assert target_of(placed("b"), newer, [swapping], hot=True) is None
    assert target_of(swapping, newer, [placed("b")], hot=True) == CHALLENGER


def test_going_back_to_what_it_serves_takes_nobodys_turn() -> None:
    back = msgspec.structs.replace(POLICY, desired=OLD)
    assert target_of(placed("a", target=NEW), back, [placed("b", state="swapping", target=NEW)], hot=False) == OLD


def test_engines_out_of_service_take_nobodys_turn() -> None:
    swapping = placed("a", state="swapping", target=NEW)
    for state in ("joining", "failed", "lost"):
        assert target_of(placed("b", state=state, target=None), POLICY, [swapping], hot=False) == NEW


def test_an_evaluation_engine_loads_what_is_under_evaluation() -> None:
    engine = placed("a", role="evaluation")
    under = msgspec.structs.replace(POLICY, under_evaluation=CHALLENGER)
    assert target_of(engine, under, [placed("b", state="swapping", target=NEW)], hot=False) == CHALLENGER
    assert target_of(engine, POLICY, [], hot=False) == OLD


def test_converged_means_all_in_service_and_at_least_one() -> None:
    ready = placed("a", version="v2").engine
    assert not converged(POLICY, [])
    assert converged(POLICY, [ready, placed("b", state="joining").engine, placed("c", state="lost").engine])
    assert not converged(POLICY, [ready, placed("b", state="swapping", version="v2").engine])
    assert not converged(POLICY, [ready, placed("b").engine])


def test_the_table_decides() -> None:
    for state in EngineState:
        assert may_become(state, state)
        for to in EngineState:
            if to is not state:
                assert may_become(state, to) == (to in ENGINE_TRANSITIONS[state])
