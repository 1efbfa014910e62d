"""Engines: their heartbeats, what they are told to serve, and when they are given up for lost.

When an engine was last heard is kept in memory: a restart of control asks every engine anew, and waits for
its word as long as for any.
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from ingest.contracts.fleet import Assignment, Engine, EngineState, Heartbeat, Refusal, Swap, Version
from serving.control import policies
from serving.control.errors import InvalidTransition, NotFound
from serving.control.tables import EngineRow, SwapRow
from serving.fleet.assignments import Placed, may_become, target_of


class LastSeen:
    """When each engine was last heard. `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._at: dict[str, float] = {}

    def heard(self, engine_id: str) -> None:
        """The engine has just spoken."""
        self._at[engine_id] = self._clock()

    def at(self, engine_id: str) -> float:
        """When it spoke last; when control started, if it has not since."""
        return self._at.get(engine_id, self._started)


def heartbeat(session: Session, engine_id: str, beat: Heartbeat) -> tuple[Assignment, bool]:
    """Takes in a heartbeat: what the engine should serve, and whether anything changed for gateways.

    Raises `NotFound` for an unknown policy, `InvalidTransition`.
    """
    policy = policies.get(session, beat.policy)
    row = session.get(EngineRow, engine_id)
    if row is None:
        row = EngineRow(engine_id=engine_id, state=str(EngineState.JOINING), policy=beat.policy)
        session.add(row)
    if not may_become(EngineState(row.state), beat.state):
        raise InvalidTransition(f"A {row.state} engine cannot become {beat.state}: it has to join again first.")
    told = msgspec.to_builtins(beat)
    changed = any(getattr(row, name) != told.get(name, default) for name, default in _DEFAULTS.items())
    for name, default in _DEFAULTS.items():
        setattr(row, name, told.get(name, default))
    session.flush()
    others = [
        _placed(other)
        for other in session.scalars(
            select(EngineRow).where(EngineRow.policy == beat.policy, EngineRow.engine_id != engine_id)
        )
    ]
    placed = _placed(row)
    hot = policies.reference(session, policy.name, policy.desired.version, row.build) is not None
    target = target_of(placed, policy, others, hot=hot)
    if target != placed.target:
        row.target = msgspec.to_builtins(target)
    reference = None
    if target is not None and beat.role == "serve":  # what judges a challenger shares no fault with a swap in place
        reference = policies.reference(session, policy.name, target.version, row.build)
    return Assignment(target=target, reference=reference), changed


_DEFAULTS: dict[str, object] = {
    "policy": "",
    "url": "",
    "token": "",
    "role": "",
    "state": "",
    "version": "",
    "build": "",
    "max_model_len": 0,
    "media": False,
    "error": "",
    "refusal": None,
}


def remove(session: Session, engine_id: str) -> None:
    """Forgets an engine that left in order. Raises `NotFound`."""
    row = session.get(EngineRow, engine_id)
    if row is None:
        raise NotFound("There is no engine with this id: `GET /v1/fleet` lists them.")
    session.delete(row)


def mark_lost(session: Session, seen: LastSeen, before: float) -> list[str]:
    """Marks engines that were last heard before `before` as lost; their ids."""
    lost = []
    for row in session.scalars(select(EngineRow).where(EngineRow.state != str(EngineState.LOST))):
        if seen.at(row.engine_id) < before:
            row.state = str(EngineState.LOST)
            lost.append(row.engine_id)
    return lost


def every(session: Session) -> list[Engine]:
    """All engines, by id, without the time they were last heard."""
    return [_engine(row) for row in session.scalars(select(EngineRow).order_by(EngineRow.engine_id))]


def add_swap(session: Session, swap: Swap) -> None:
    """Keeps the report of a swap."""
    session.add(SwapRow(policy=swap.policy, started_at=swap.started_at, body=msgspec.to_builtins(swap)))


def swaps(session: Session, policy: str | None, since: float) -> list[Swap]:
    """Swaps that started at `since` or later, of one policy or all, the oldest first."""
    query = select(SwapRow).where(SwapRow.started_at >= since).order_by(SwapRow.id)
    if policy is not None:
        query = query.where(SwapRow.policy == policy)
    return [msgspec.convert(row.body, Swap) for row in session.scalars(query)]


def _engine(row: EngineRow) -> Engine:
    return Engine(
        engine_id=row.engine_id,
        policy=row.policy,
        url=row.url,
        token=row.token,
        role=row.role,
        state=EngineState(row.state),
        version=row.version,
        build=row.build,
        max_model_len=row.max_model_len,
        media=row.media,
        error=row.error,
        refusal=msgspec.convert(row.refusal, Refusal | None),
    )


def _placed(row: EngineRow) -> Placed:
    return Placed(_engine(row), msgspec.convert(row.target, Version | None))
