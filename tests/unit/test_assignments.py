"""Swaps in turn: which engine is told what, and the table of engine states."""

import msgspec
import pytest

from ingest.contracts.fleet import ENGINE_TRANSITIONS, Engine, EngineState, Policy, Reference, Version
from serving.fleet.assignments import Placed, assignment, converged, may_become, target_of

OLD, NEW, CHALLENGER = Version("v1", "/v1"), Version("v2", "/v2"), Version("v3", "/v3")
POLICY = Policy(name="p", desired=NEW)


def placed(name: str, *, state: str = "ready", version: str = "v1", target: Version | None = OLD, **more) -> Placed:
    engine = Engine(
        engine_id=name, policy="p", url="", token="", state=EngineState(state), version=version, build="b", **more
    )
    return Placed(engine, target)


def test_the_first_engine_gets_the_turn_and_the_others_wait() -> None:
    a, b = placed("a"), placed("b")
    assert target_of(a, POLICY, [b]) == NEW
    assert target_of(b, POLICY, [placed("a", target=NEW)]) == OLD
    assert target_of(b, POLICY, [placed("a", state="swapping", target=NEW)]) == OLD


@pytest.mark.parametrize(
    "other",
    [
        placed("a", version="v2", target=NEW),
        placed("a", state="failed", target=NEW),
        placed("a", state="lost", target=NEW),
        placed("a", target=NEW, error="the reference was not reproduced"),
    ],
)
def test_the_turn_passes_on_when_the_engine_is_ready_or_gave_up(other: Placed) -> None:
    assert target_of(placed("b"), POLICY, [other]) == NEW


def test_the_turn_stays_taken_when_another_version_is_desired_meanwhile() -> None:
    newer = msgspec.structs.replace(POLICY, desired=CHALLENGER)
    swapping = placed("a", state="swapping", target=NEW)
    assert target_of(placed("b"), newer, [swapping]) == OLD
    assert target_of(swapping, newer, [placed("b")]) == CHALLENGER


def test_engines_out_of_service_take_nobodys_turn() -> None:
    swapping = placed("a", state="swapping", target=NEW)
    for state in ("joining", "failed", "lost"):
        assert target_of(placed("b", state=state), POLICY, [swapping]) == NEW
    assert target_of(placed("b", target=None), POLICY, [swapping]) == NEW


def test_an_evaluation_engine_loads_what_is_under_evaluation_cold() -> None:
    engine = placed("a", role="evaluation")
    under = msgspec.structs.replace(POLICY, under_evaluation=CHALLENGER)
    assert target_of(engine, under, [placed("b", state="swapping", target=NEW)]) == CHALLENGER
    assert target_of(engine, POLICY, []) == OLD
    assert assignment(CHALLENGER, engine.engine, []).load == "cold"


def test_a_hot_swap_comes_with_the_reference_of_its_own_build() -> None:
    def reference(build: str) -> Reference:
        return Reference(version="v2", build=build, checksum="c", sequences=(), logprobs=(), noise=0.0)

    told = assignment(NEW, placed("a").engine, [reference("other"), reference("b")])
    assert told.load == "hot"
    assert told.reference is not None
    assert told.reference.build == "b"
    assert assignment(NEW, placed("a").engine, [reference("other")]).reference is None


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
