# ruff: noqa: F722 (shapes in jaxtyping annotations are strings)
"""The training loop: one pass over the minibatches, one optimizer step each.

    for each minibatch:
        forward → loss → backward, part by part
        step
        measure, check, report

The loss of a step is the weighted token sum over its minibatch, divided by rows × the dataset's mean output
length: a token counts the same in a long answer as in a short one. What a step saw is handed to `report`,
which saves and draws; a broken bound raises `TrainingStopped` before that.
"""

import time
from collections.abc import Callable, Sequence

import torch
from deepspeed import DeepSpeedEngine
from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.batches import Minibatch, Part
from trainer.config import LossSettings, TrainerSettings
from trainer.engine import gradient_norm
from trainer.monitors import Anchor, StepMetrics, check_step


def run(
    engine: DeepSpeedEngine,
    minibatches: Sequence[Minibatch],
    settings: TrainerSettings,
    *,
    first_step: int,
    mean_output_tokens: float,
    anchor: Anchor,
    report: Callable[[StepMetrics], None],
) -> None:
    """Trains on `minibatches`; the first is optimizer step `first_step` since the base. Raises `TrainingStopped`."""
    for number, minibatch in enumerate(minibatches, first_step):
        started = time.monotonic()
        seen = _Measurements(settings.loss)

        for part in minibatch.parts:
            logprobs, entropy = engine(part.sequences)
            loss = part_loss(part, logprobs, settings.loss) / (minibatch.rows * mean_output_tokens)
            engine.backward(loss)
            seen.add(part, logprobs.detach(), entropy, loss.detach())

        norm = gradient_norm(engine.module.parameters())
        learning_rate = engine.get_lr()[0]
        engine.step()

        metrics = seen.metrics(number, minibatch.reward, norm, learning_rate, time.monotonic() - started)
        check_step(metrics, anchor, settings.monitors)
        report(metrics)


def part_loss(part: Part, logprobs: Float[Tensor, " tokens"], settings: LossSettings) -> Float[Tensor, ""]:
    """Weighted sum over a part's tokens of the policy loss and the divergence to the reference, in nats."""
    per_token = losses.policy_loss(settings, logprobs, part.behaviour, part.advantages)
    if settings.kl:
        per_token = per_token + settings.kl * losses.k3(logprobs, part.reference)
    return (part.weights * per_token).sum()


class _Measurements:
    """What the parts of one step showed."""

    def __init__(self, settings: LossSettings) -> None:
        self._settings = settings
        self._loss = 0.0
        self._tokens: list[Float[Tensor, "4 tokens"]] = []

    def add(
        self,
        part: Part,
        logprobs: Float[Tensor, " tokens"],
        entropy: Float[Tensor, " tokens"],
        loss: Float[Tensor, ""],
    ) -> None:
        ratio = losses.log_ratio(logprobs, part.behaviour).exp()
        gap = (logprobs - part.behaviour).abs()
        self._tokens.append(torch.stack([ratio, gap, losses.k3(logprobs, part.reference), entropy]))
        self._loss += float(loss)

    def metrics(self, step: int, reward: float, norm: float, learning_rate: float, seconds: float) -> StepMetrics:
        ratio, gap, kl, entropy = torch.cat(self._tokens, dim=1)
        return StepMetrics(
            step=step,
            loss=self._loss,
            reward=reward,
            kl=float(kl.mean()),
            effective_samples=losses.effective_samples(ratio),
            clipped=float(losses.clipped(self._settings, ratio).mean()),
            gradient_norm=norm,
            entropy=float(entropy.mean()),
            logprob_gap=float(gap.mean()),
            learning_rate=learning_rate,
            tokens=len(ratio),
            seconds=seconds,
        )
