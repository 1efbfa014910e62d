"""The engine gap: do the weights that a row names give the logprobs that it carries?

Before the first update, a sample of rows is scored again with the exported weights of each version that made
them (those that engines load, in the run's compute dtype), token by token as their spans say. Served and rescored
logprobs of one model differ by a few hundredths on average (kernels, rounding): 0.033 to 0.047 was measured in
healthy runs, 0.39 when foreign weights had slipped in. So a mean beyond the bound means that the data is not what
it says: another template, temperature, tokenizer or version.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config import GapSettings
from trainer.dataset import Row
from trainer.errors import TrainingStopped

Rescore = Callable[[str, Sequence[int]], list[np.ndarray]]
"""Version, indices of rows → logprobs of those rows' output tokens under that version's weights."""


@dataclass(frozen=True)
class Gap:
    """|logged - rescored| per token, in nats, over a sample of rows."""

    mean: float
    p99: float
    tokens: int


def sample(rows: Sequence[Row], count: int) -> dict[str, list[int]]:
    """Indices of about `count` rows by version, as many of each, evenly spaced; a row counts for each of its spans."""
    by_version: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        for version in {span.version for span in row.spans}:
            by_version.setdefault(version, []).append(i)
    share = max(1, count // max(1, len(by_version)))
    return {
        version: [found[i] for i in np.linspace(0, len(found) - 1, min(share, len(found))).astype(int)]
        for version, found in sorted(by_version.items())
    }


def check_gap(rows: Sequence[Row], rescore: Rescore, settings: GapSettings) -> Gap:
    """The gap over a sample of `rows`; `rescore` knows every version they name.

    Raises `TrainingStopped("gap")` where any version's mean is beyond the bound: one foreign version must not
    hide behind the others.
    """
    differences = []
    for version, chosen in sample(rows, settings.rows).items():
        rescored = rescore(version, chosen)
        found = np.concatenate(
            [_in_version(rows[i], version, values) for i, values in zip(chosen, rescored, strict=True)]
        )
        if not found.mean() <= settings.bound:
            raise TrainingStopped(
                "gap",
                f"logged logprobs of version {version} differ from its weights by {found.mean():.3f} nats per token on "
                f"average (p99 {np.quantile(found, 0.99):.3f}), bound {settings.bound:g}; check chat template, "
                "temperature, tokenizer, and that engines serve the version they report",
            )
        differences.append(found)
    every = np.concatenate(differences)
    return Gap(float(every.mean()), float(np.quantile(every, 0.99)), len(every))


def _in_version(row: Row, version: str, rescored: np.ndarray) -> np.ndarray:
    difference = np.abs(row.logprobs - rescored)
    return np.concatenate([difference[s.start : s.end] for s in row.spans if s.version == version])
