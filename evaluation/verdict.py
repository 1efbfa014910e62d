"""The decision: from an interval, guard lines and the holds before it to a verdict with its reasons.

In order: a failed guard rejects; a lower bound above zero promotes; an upper bound below zero rejects; so does a
lineage that stayed undecided through its holds; anything else is held, and the next run goes on from it.
Without a target there is nothing to be better at: guards that hold give `canary`, no more.
"""

from collections.abc import Sequence

from evaluation.statistics import Paired
from ingest.contracts.verdict import Decision, Guard


def decide(
    interval: Paired | None, guards: Sequence[Guard], holds: int, max_holds: int
) -> tuple[Decision, tuple[str, ...]]:
    """The decision on a challenger whose lineage was held `holds` times, and why; `interval` is None without target."""
    failed = tuple(
        f"guard {g.name} failed: {g.challenger:.3f} against {g.champion:.3f}, bound {g.bound:.3f}"
        for g in guards
        if not g.passed
    )
    if failed:
        return Decision.REJECT, failed
    if interval is None:
        return Decision.CANARY, ("no target is declared: guards hold, and nothing says it is better",)
    bounds = f"[{interval.low:+.3f}, {interval.high:+.3f}] at {1 - interval.alpha:.1%} one-sided"
    said = f"difference {interval.difference:+.3f} {bounds}"
    if interval.low > 0 and interval.enough_differ:
        return Decision.PROMOTE, (f"better: {said}",)
    if interval.high < 0:
        return Decision.REJECT, (f"worse: {said}",)
    if holds >= max_holds:
        return Decision.REJECT, (f"undecided after {max_holds} holds: {said}",)
    if interval.low > 0:
        return Decision.HOLD, (f"too few questions differ at all to call it better: {said}",)
    return Decision.HOLD, (f"undecided, more training or data is needed: {said}",)
