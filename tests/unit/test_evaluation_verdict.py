"""The table of decisions."""

import numpy as np
import pytest

from evaluation.statistics import Paired
from evaluation.verdict import decide
from ingest.contracts.verdict import Decision, Guard

HELD = Guard("echo", 0.1, 0.1, 0.2, True)
FAILED = Guard("echo", 0.1, 0.9, 0.2, False)


def interval(low: float, high: float, differing: int = 32) -> Paired:
    differences = np.array([0.1] * differing + [0.0] * (32 - differing))
    return Paired(0.5, 0.5, (low + high) / 2, low, high, 0.05, differences)


@pytest.mark.parametrize(
    ("bounds", "guards", "holds", "decision", "reason"),
    [
        (interval(0.01, 0.2), (HELD,), 0, Decision.PROMOTE, "better"),
        (interval(0.01, 0.2), (HELD,), 8, Decision.PROMOTE, "better"),
        (interval(0.01, 0.2), (HELD, FAILED), 0, Decision.REJECT, "guard echo failed: 0.900 against 0.100"),
        (interval(0.01, 0.2, differing=3), (HELD,), 0, Decision.HOLD, "too few questions differ"),
        (interval(-0.2, -0.01), (HELD,), 0, Decision.REJECT, "worse"),
        (interval(-0.1, 0.1), (HELD,), 0, Decision.HOLD, "undecided"),
        (interval(-0.1, 0.1), (HELD,), 2, Decision.HOLD, "undecided"),
        (interval(-0.1, 0.1), (HELD,), 3, Decision.REJECT, "undecided after 3 holds"),
        (interval(0.0, 0.0), (), 0, Decision.HOLD, "undecided"),
        (None, (HELD,), 0, Decision.CANARY, "no target"),
        (None, (FAILED,), 0, Decision.REJECT, "guard echo failed"),
    ],
)
def test_decisions(bounds, guards, holds, decision, reason) -> None:
    got, reasons = decide(bounds, guards, holds, max_holds=3)
    assert got is decision
    assert reason in reasons[0]
