"""The engine gap: do the weights that a row names give the logprobs that it carries?

Before the first update, a sample of rows is scored again with the exported weights (bf16, as the engine loads
them) of each version that made them, token by token as their spans say. Served and rescored logprobs of one
model differ by a few hundredths on average (kernels, rounding): 0.033 to 0.047 was measured in healthy runs,
0.39 when foreign weights had slipped in. So a mean beyond the bound means that the data is not what it says:
another template, temperature, tokenizer or version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.config import GapSettings
from trainer.dataset import Row
from trainer.errors import TrainingStopped
from trainer.policy import load, score


@dataclass(frozen=True)
class Gap:
    """|logged - rescored| per token, in nats, over a sample of rows."""

    mean: float
    p99: float
    tokens: int


def sample(rows: Sequence[Row], count: int) -> dict[str, list[Row]]:
    """About `count` rows by version, the same number of each, evenly spaced; a row counts for each of its spans."""
    by_version: dict[str, list[Row]] = {}
    for row in rows:
        for version in {span.version for span in row.spans}:
            by_version.setdefault(version, []).append(row)
    share = max(1, count // max(1, len(by_version)))
    return {
        version: [found[i] for i in np.linspace(0, len(found) - 1, min(share, len(found))).astype(int)]
        for version, found in sorted(by_version.items())
    }


def check_gap(rows: Sequence[Row], exports: Mapping[str, Path], settings: GapSettings, forward_tokens: int) -> Gap:
    """The gap over a sample of `rows`; `exports` has the folder of every version they name.

    Raises `TrainingStopped("gap")` where any version's mean is beyond the bound: one foreign version must not
    hide behind the others.
    """
    differences = []
    for version, chosen in sample(rows, settings.rows).items():
        rescored, _ = score(load(exports[version]), [(r.prompt_ids, r.output_ids) for r in chosen], forward_tokens)
        found = np.concatenate(
            [_in_version(row, version, values) for row, values in zip(chosen, rescored, strict=True)]
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
