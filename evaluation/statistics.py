"""Paired statistics over questions, and how much chance of error a look may spend.

The unit is the question: the answers to it are averaged first, so more answers sharpen a question and never
pass for more questions. Bounds are one-sided t bounds on the mean of the paired differences. With few
questions that differ at all, t bounds promise too much (three questions of 32 suffice for 95 %); a sign test
cannot reach `alpha` on fewer than log2(1/alpha) of them, so a win needs that many (`enough_differ`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
Spending = Literal["series", "constant"]


@dataclass(frozen=True)
class Paired:
    """Challenger minus champion: means, and the bounds `low` and `high`, each one-sided at 1 - `alpha`.

    `differences` is one number per question.
    """

    champion_mean: float
    challenger_mean: float
    difference: float
    low: float
    high: float
    alpha: float
    differences: Values

    @property
    def enough_differ(self) -> bool:
        """Whether so many questions differ that a sign test could reach `alpha`."""
        return int(np.count_nonzero(self.differences)) >= math.ceil(-math.log2(self.alpha))


def paired(champion: Values, challenger: Values, alpha: float) -> Paired:
    """Compares two arrays [questions, answers] of the target, paired by question; at least two questions."""
    if champion.shape != challenger.shape or champion.ndim != 2 or len(champion) < 2:
        raise ValueError(f"two arrays [questions >= 2, answers], got {champion.shape} and {challenger.shape}")
    first, second = champion.mean(axis=1), challenger.mean(axis=1)
    differences = second - first
    mean = float(differences.mean())
    margin = float(stats.t.ppf(1 - alpha, len(differences) - 1) * differences.std(ddof=1) / math.sqrt(len(differences)))
    return Paired(
        champion_mean=float(first.mean()),
        challenger_mean=float(second.mean()),
        difference=mean,
        low=mean - margin,
        high=mean + margin,
        alpha=alpha,
        differences=differences,
    )


def spend(alpha: float, look: int, rule: Spending) -> float:
    """The one-sided error that look number `look` (from 1) of a policy's life may spend.

    `series`: alpha/(k(k+1)); the sum over all looks is alpha, however many there will be. `constant`: alpha/2,
    what the first look of the series gets, each time: the whole is then bounded by the number of looks only.
    """
    if look < 1:
        raise ValueError(f"looks count from 1, got {look}")
    return alpha / 2 if rule == "constant" else alpha / (look * (look + 1))
