"""What each engine should serve: swaps in turn, a pure function of what control knows.

At most one engine of a policy that serves users is on its way to a new version at a time; the others keep
what they have until it is ready on it, or has failed. Engines that are not in service (joining, failed, lost) take
nobody's turn: they get the desired version at once. An evaluation engine loads what is under evaluation, cold.

Invariant: while one engine swaps, every other keeps serving.
"""

from collections.abc import Iterable

import msgspec

from ingest.contracts.fleet import ENGINE_TRANSITIONS, Assignment, Engine, EngineState, Policy, Reference, Version

IN_SERVICE = frozenset({EngineState.READY, EngineState.SWAPPING})


class Placed(msgspec.Struct, frozen=True):
    """An engine and the version it was last told to serve, None where it was told nothing yet."""

    engine: Engine
    target: Version | None


def target_of(placed: Placed, policy: Policy, others: Iterable[Placed]) -> Version:
    """The version that `placed` should serve now. `others` are the policy's other engines."""
    engine, current = placed.engine, placed.target
    if engine.role == "evaluation":
        return policy.under_evaluation or current or policy.desired
    if current == policy.desired or current is None or engine.state not in IN_SERVICE:
        return policy.desired
    turn_is_taken = any(other.engine.role == "serve" and _under_way(other) for other in others)
    return current if turn_is_taken else policy.desired


def _under_way(placed: Placed) -> bool:
    """Whether an engine in service has a target that it neither serves yet nor gave up."""
    engine, target = placed.engine, placed.target
    if engine.state is EngineState.READY:
        return target is not None and engine.version != target.version and not engine.error
    return engine.state is EngineState.SWAPPING


def assignment(target: Version, engine: Engine, references: Iterable[Reference]) -> Assignment:
    """`target` as an assignment: cold on an evaluation engine, else hot, with the reference for its build."""
    if engine.role == "evaluation":
        return Assignment(target=target, load="cold")
    reference = next((r for r in references if r.version == target.version and r.build == engine.build), None)
    return Assignment(target=target, reference=reference)


def may_become(state: EngineState, to: EngineState) -> bool:
    """Whether an engine that was in `state` may report `to`."""
    return state is to or to in ENGINE_TRANSITIONS[state]


def converged(policy: Policy, engines: Iterable[Engine]) -> bool:
    """Whether every engine of a policy that serves users is ready on the desired version, and there is one."""
    serving = [e for e in engines if e.role == "serve" and e.state in IN_SERVICE]
    return bool(serving) and all(e.state is EngineState.READY and e.version == policy.desired.version for e in serving)
