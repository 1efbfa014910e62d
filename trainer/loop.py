# ruff: noqa: F722 (shapes in jaxtyping annotations are strings)
"""The training loop: one pass over the minibatches, one optimizer step each.

    for each minibatch:
        forward → loss → backward, part by part
        step
        measure, check, report

The loss of a step is the weighted sum over its tokens (`trainer.objective`); the weights hold what it is divided by.
What a step saw is handed to `report`, which saves and draws; a broken bound raises `TrainingStopped` before that.
"""

import time
from collections.abc import Callable, Sequence

import torch
from deepspeed import DeepSpeedEngine
from jaxtyping import Float
from torch import Tensor

from trainer import losses, objective
from trainer.batches import Minibatch, Part
from trainer.config import LossSettings, TrainerSettings
from trainer.engine import gradient_norm
from trainer.monitors import Anchor, StepMetrics, check_step
from trainer.objective import part_loss


def run(
    engine: DeepSpeedEngine,
    minibatches: Sequence[Minibatch],
    settings: TrainerSettings,
    *,
    first_step: int,
    anchor: Anchor,
    report: Callable[[StepMetrics], None],
) -> None:
    """Trains on `minibatches`; the first is optimizer step `first_step` since the base. Raises `TrainingStopped`."""
    for number, minibatch in enumerate(minibatches, first_step):
        started = time.monotonic()
        seen = _Measurements(settings.loss)

        for part in minibatch.parts:
            logprobs, entropy = engine(part.sequences)
            loss = part_loss(part, logprobs, settings.loss)
            engine.backward(loss)
            seen.add(part, logprobs.detach(), entropy, loss.detach())

        norm = gradient_norm(engine.module.parameters())
        learning_rate = engine.get_lr()[0]
        engine.step()

        metrics = seen.metrics(number, minibatch.reward, norm, learning_rate, time.monotonic() - started)
        check_step(metrics, anchor, settings.monitors)
        report(metrics)


class _Measurements:
    """What the parts of one step showed."""

    def __init__(self, settings: LossSettings) -> None:
        self._settings = settings
        self._loss = 0.0
        self._tokens: list[Float[Tensor, "5 tokens"]] = []

    def add(
        self,
        part: Part,
        logprobs: Float[Tensor, " tokens"],
        entropy: Float[Tensor, " tokens"],
        loss: Float[Tensor, ""],
    ) -> None:
        ratio = losses.log_ratio(logprobs, part.behaviour).exp()
        gap = (logprobs - part.behaviour).abs()
        kl, clipped = losses.k3(logprobs, part.reference), objective.clipped(part, logprobs, self._settings)
        self._tokens.append(torch.stack([ratio, gap, kl, entropy, clipped]))
        self._loss += float(loss)

    def metrics(self, step: int, reward: float, norm: float, learning_rate: float, seconds: float) -> StepMetrics:
        ratio, gap, kl, entropy, clipped = torch.cat(self._tokens, dim=1)
        return StepMetrics(
            step=step,
            loss=self._loss,
            reward=reward,
            kl=float(kl.mean()),
            effective_samples=losses.effective_samples(ratio),
            clipped=float(clipped.mean()),
            gradient_norm=norm,
            entropy=float(entropy.mean()),
            logprob_gap=float(gap.mean()),
            learning_rate=learning_rate,
            tokens=len(ratio),
            seconds=seconds,
        )
