"""Monitors: what must hold for a run to go on. The first that does not raises `TrainingStopped` with its name.

A stopped run publishes nothing. Each message says what was seen, the bound, and where to look.
"""

import math
from dataclasses import dataclass

from trainer.config import MonitorSettings, StalenessSettings
from trainer.errors import TrainingStopped


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step, as curves show it. Divergences and entropy are means per token, in nats."""

    step: int
    loss: float
    reward: float
    """Mean reward of the step's rows."""
    kl: float
    effective_samples: float
    clipped: float
    gradient_norm: float
    entropy: float
    logprob_gap: float
    """Mean |log π - logged logprob| per token: engine, rounding and the update so far."""
    learning_rate: float
    tokens: int
    """Output tokens learned from."""
    seconds: float


@dataclass(frozen=True)
class Anchor:
    """What the first run after the base looked like; collapse and drift are measured against it."""

    entropy: float
    output_tokens: float


def check_step(step: StepMetrics, anchor: Anchor, settings: MonitorSettings) -> None:
    """Raises `TrainingStopped` for the first bound that `step` breaks."""
    where = f"at step {step.step}"
    for name in ("loss", "gradient_norm", "kl", "entropy"):
        if not math.isfinite(getattr(step, name)):
            raise TrainingStopped("nan", f"{name} is {getattr(step, name)} {where}; look for broken rows or weights")
    floor = settings.entropy * anchor.entropy
    for monitor, broken, detail in (
        ("kl", step.kl > settings.kl,
         f"{step.kl:.3g} nats per token from the reference {where}, bound {settings.kl:g}; "
         "lower the learning rate or raise loss.kl"),
        ("effective_samples", step.effective_samples < settings.effective_samples,
         f"{step.effective_samples:.3g} of the tokens count {where}, bound {settings.effective_samples:g}; "
         "the data is too far from the weights: older than it should be, or the learning rate is too high"),
        ("clipped", step.clipped > settings.clipped,
         f"{step.clipped:.3g} of the tokens were clipped {where}, bound {settings.clipped:g}; "
         "the data is too far from the weights"),
        ("gradient_norm", step.gradient_norm > settings.gradient_norm,
         f"{step.gradient_norm:.3g} {where}, bound {settings.gradient_norm:g}; look at the step's rows"),
        ("entropy", step.entropy < floor,
         f"{step.entropy:.3g} nats per token {where}, bound {floor:.3g}: answers are becoming all the same; "
         "look at samples before training on"),
    ):  # fmt: skip
        if broken:
            raise TrainingStopped(monitor, detail)


def check_length(mean_output_tokens: float, anchor: Anchor, settings: MonitorSettings) -> None:
    """Raises `TrainingStopped("length")` where answers grew or shrank by more than the allowed factor."""
    factor = mean_output_tokens / anchor.output_tokens
    if not 1 / settings.length <= factor <= settings.length:
        raise TrainingStopped(
            "length",
            f"answers have {mean_output_tokens:.1f} tokens where they had {anchor.output_tokens:.1f} after the base, "
            f"a factor beyond {settings.length:g}; the reward may be paid for length",
        )


def check_staleness(stale: int, rows: int, settings: StalenessSettings) -> None:
    """Raises `TrainingStopped("staleness")` where too many of a dataset's rows are too old to learn from."""
    if stale > settings.share * rows:
        raise TrainingStopped(
            "staleness",
            f"{stale} of {rows} rows come from weights more than {settings.versions} versions away, unknown here, or "
            f"are older than {settings.seconds:g} s; train sooner, or look at which version the fleet serves",
        )
