"""Verdict: what an evaluation concluded, with its evidence."""

from enum import StrEnum

import msgspec

from ingest.contracts.versions import version


class Decision(StrEnum):
    """What is to become of a challenger."""

    PROMOTE = "promote"
    """Better than the champion on the declared target: it may serve everyone."""
    CANARY = "canary"
    """Not worse, and nothing more is known: it may serve some."""
    HOLD = "hold"
    """Undecided: the next run goes on from it, and looks again."""
    REJECT = "reject"
    """Worse, or a guard failed: it never serves."""


class Guard(msgspec.Struct, frozen=True):
    """One guard line: champion's and challenger's value, the bound, and whether it held."""

    name: str
    champion: float
    challenger: float
    bound: float
    passed: bool


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about `challenger` against `champion`, and the numbers behind it.

    `difference` is challenger minus champion in mean target; `low` and `high` bound it at `confidence`
    (one-sided each). `look` counts the looks of the policy's life, from 1.
    """

    schema: int = version(1)
    run_id: str
    policy: str
    challenger: str
    champion: str
    decision: Decision
    reasons: tuple[str, ...]
    target: str
    champion_mean: float
    challenger_mean: float
    difference: float
    low: float
    high: float
    confidence: float
    questions: int
    samples: int
    look: int
    guards: tuple[Guard, ...]
    created_at: float
