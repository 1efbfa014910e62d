"""From rewards to advantages where every prompt has one answer: there is no group to compare with.

A row's advantage is its reward minus its segment's baseline, the mean reward of that segment *before* the
dataset's cut (the manifest carries it), shrunk towards zero while few rewards back it. It is divided by a
deviation that moves slowly from run to run, so that one odd dataset cannot rescale the learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingest.contracts.dataset import Baseline
from trainer.config import AdvantageSettings
from trainer.errors import TrainingStopped


@dataclass(frozen=True)
class Advantages:
    """`values`, one a row, normalised and clipped; `variance`, the moving variance after this dataset."""

    values: np.ndarray
    variance: float


def baseline(segment: str, baselines: Mapping[str, Baseline], shrink: float) -> float:
    """The segment's mean reward times n / (n + shrink); 0 for a segment never seen."""
    known = baselines.get(segment)
    return known.mean * known.count / (known.count + shrink) if known and known.count else 0.0


def advantages(
    rewards: Sequence[float],
    segments: Sequence[str],
    baselines: Mapping[str, Baseline],
    variance: float | None,
    settings: AdvantageSettings,
) -> Advantages:
    """Advantages of a dataset, given the moving variance that the parent's state carries (None: the first run).

    Raises `TrainingStopped("variance")` where all rewards are equal: such data says nothing about which answer is
    better, and an update from it would only push everything one way.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    if reward.size == 0:
        raise TrainingStopped("variance", "the dataset has no row left to learn from")
    if np.ptp(reward) < 1e-9:
        raise TrainingStopped(
            "variance",
            f"all {reward.size} rewards are {reward[0]:g}, which cannot tell a good answer from a bad one; "
            "look at the reward specification and at who sends feedback",
        )
    raw = reward - np.array([baseline(s, baselines, settings.shrink) for s in segments])
    seen = float(np.mean(raw**2))
    moved = seen if variance is None else settings.keep * variance + (1 - settings.keep) * seen
    scale = max(moved**0.5, settings.minimum_deviation)
    return Advantages(np.clip(raw / scale, -settings.clip, settings.clip), moved)
