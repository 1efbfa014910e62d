"""What each engine should serve: swaps in turn, a pure function of what control knows.

At most one engine of a policy that serves users is on its way to a new version at a time; the others keep what they
serve until it is ready on it, or refuses it. An engine that refuses loses its turn, and gets another when it would try
again. Without a reference of its build an engine can only load cold, out of service: that waits, too, while any
other is coming or going, so that a fleet of two never has both away. Engines that are not in service (joining, failed,
lost) take nobody's turn: they get the desired version at once. An evaluation engine loads what is under evaluation.

Invariant: while one engine is on its way, every other that was in service keeps serving.
"""

from collections.abc import Iterable

import msgspec

from ingest.contracts.fleet import ENGINE_TRANSITIONS, Engine, EngineState, Policy, Version

IN_SERVICE = frozenset({EngineState.READY, EngineState.SWAPPING})
COMING_OR_GOING = frozenset({EngineState.JOINING, EngineState.DRAINING})


class Placed(msgspec.Struct, frozen=True):
    """An engine and the version it was last told to serve; None where it was told nothing yet, or to wait."""

    engine: Engine
    target: Version | None


def target_of(placed: Placed, policy: Policy, others: Iterable[Placed], *, hot: bool) -> Version | None:
    """The version that `placed` should serve now; None: what it serves, for it is not its turn.

    `others` are the policy's other engines; `hot`, whether there is a reference of the desired version for its build.
    """
    engine, desired = placed.engine, policy.desired
    if engine.role == "evaluation":
        return policy.under_evaluation or placed.target or desired
    if engine.state not in IN_SERVICE or engine.version == desired.version:
        return desired
    begun = placed.target == desired
    for other in others:
        away = not hot and not begun and other.engine.state in COMING_OR_GOING
        if other.engine.role == "serve" and (away or _under_way(other)):
            return None
    return None if _refuses(engine, desired) else desired


def _under_way(placed: Placed) -> bool:
    """Whether an engine in service has a target that it neither serves yet nor refuses."""
    engine, target = placed.engine, placed.target
    if engine.state is EngineState.READY:
        return target is not None and engine.version != target.version and not _refuses(engine, target)
    return engine.state is EngineState.SWAPPING


def _refuses(engine: Engine, version: Version) -> bool:
    refusal = engine.refusal
    return refusal is not None and refusal.version == version.version and refusal.standing


def may_become(state: EngineState, to: EngineState) -> bool:
    """Whether an engine that was in `state` may report `to`."""
    return state is to or to in ENGINE_TRANSITIONS[state]


def converged(policy: Policy, engines: Iterable[Engine]) -> bool:
    """Whether every engine of a policy that serves users is ready on the desired version, and there is one."""
    serving = [e for e in engines if e.role == "serve" and e.state in IN_SERVICE]
    return bool(serving) and all(e.state is EngineState.READY and e.version == policy.desired.version for e in serving)
