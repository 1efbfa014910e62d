"""Rollout: the states of a version on its way to the users, and the table of valid transitions."""

from enum import StrEnum

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.versions import version


class RolloutState(StrEnum):
    """Where a version stands."""

    REGISTERED = "registered"
    """In the registry, not evaluated."""
    HELD = "held"
    """Evaluated, undecided."""
    REJECTED = "rejected"
    """Its gate failed, or the engines did not take it in: it never serves save by a person's recorded override."""
    ACCEPTED = "accepted"
    """It passed its gate (or was overridden): the alias `champion` may point at it."""
    ROLLING = "rolling"
    """The fleet is being swapped to it, engine by engine."""
    SERVING = "serving"
    """Every engine in service reports it."""
    RETIRED = "retired"
    """It served, and another version does now. It may be rolled back to."""


S = RolloutState
TRANSITIONS: dict[RolloutState, frozenset[RolloutState]] = {
    S.REGISTERED: frozenset({S.HELD, S.REJECTED, S.ACCEPTED}),
    S.HELD: frozenset({S.ACCEPTED}),
    S.REJECTED: frozenset({S.ACCEPTED}),
    S.ACCEPTED: frozenset({S.ROLLING, S.REJECTED}),
    S.ROLLING: frozenset({S.SERVING, S.RETIRED, S.REJECTED}),
    S.SERVING: frozenset({S.RETIRED}),
    S.RETIRED: frozenset({S.ROLLING}),
}


def advance(state: RolloutState, to: RolloutState) -> RolloutState:
    """`to`, if the table allows it from `state`; raises `ContractError` otherwise."""
    if to not in TRANSITIONS[state]:
        raise ContractError(
            f"a {state} version cannot become {to}; it may become {', '.join(sorted(TRANSITIONS[state])) or 'nothing'}"
        )
    return to


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of one policy, and how it got where it is."""

    schema: int = version(1)
    policy: str
    checkpoint_id: str
    state: RolloutState
    updated_at: float
    reason: str = ""
    overridden_by: str | None = None
