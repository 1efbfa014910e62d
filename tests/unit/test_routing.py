"""Rendezvous hashing with bounded load, and suspicion of engines that failed."""

from collections import Counter

from ingest.contracts.fleet import Engine, EngineState
from serving.fleet.health import LONGEST_SECONDS, Suspicion
from serving.fleet.routing import HEADROOM, choose


def engines(count: int) -> list[Engine]:
    return [
        Engine(engine_id=f"e{i}", policy="p", url=f"http://e{i}", token="t", state=EngineState.READY)
        for i in range(count)
    ]


def test_no_engine_is_none() -> None:
    assert choose([], "session", {}) is None


def test_a_session_keeps_its_engine_and_order_of_engines_is_irrelevant() -> None:
    fleet = engines(5)
    first = choose(fleet, "session", {})
    assert choose(list(reversed(fleet)), "session", {}) == first


def test_a_leaving_engine_moves_only_its_own_sessions() -> None:
    fleet = engines(5)
    sessions = [f"s{i}" for i in range(500)]
    before = {s: choose(fleet, s, {}).engine_id for s in sessions}
    after = {s: choose(fleet[:-1], s, {}).engine_id for s in sessions}
    assert all(after[s] == before[s] for s in sessions if before[s] != "e4")
    assert min(Counter(before.values()).values()) > 50


def test_load_is_bounded_whatever_the_hashes_say() -> None:
    fleet, loads = engines(4), Counter()
    for _ in range(400):
        loads[choose(fleet, "everybody is in this session", loads).engine_id] += 1
    assert max(loads.values()) <= HEADROOM * 401 / 4 + 1
    assert len(loads) == 4


def test_suspects_are_asked_last() -> None:
    fleet = engines(3)
    liked = choose(fleet, "session", {}).engine_id
    assert choose(fleet, "session", {}, lambda e: e == liked).engine_id != liked
    assert choose(fleet, "session", {}, lambda e: True).engine_id == liked


def test_suspicion_grows_with_failures_in_a_row_and_ends_with_an_answer() -> None:
    now = 0.0
    suspicion = Suspicion(lambda: now)
    assert not suspicion.suspected("e0")
    suspicion.failed("e0")
    assert suspicion.suspected("e0")
    assert not suspicion.suspected("e1")
    now = 0.6
    assert not suspicion.suspected("e0")
    for _ in range(10):
        suspicion.failed("e0")
    now += LONGEST_SECONDS - 0.1
    assert suspicion.suspected("e0")
    suspicion.answered("e0")
    assert not suspicion.suspected("e0")
