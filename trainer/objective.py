# ruff: noqa: F722 (shapes in jaxtyping annotations are strings)
"""What the settings make of a part of a minibatch: its loss, and what the loss did to each token.

    importance weights × loss + kl × divergence to the reference, times the batch's weights, summed

`trainer.losses` has the formulas.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.batches import Part
from trainer.config import CorrectionSettings, LossSettings
from trainer.losses import Tokens

ESTIMATORS = {"k1": losses.k1, "k2": losses.k2, "k3": losses.k3}


def part_loss(part: Part, logprobs: Tokens, settings: LossSettings) -> Float[Tensor, ""]:
    """A part's share of its minibatch's loss, in nats; parts add up."""
    per_token = policy_loss(part, logprobs, settings)
    if settings.kl:
        per_token = per_token + settings.kl * ESTIMATORS[settings.kl_estimator](logprobs, part.reference)
    return (part.weights * per_token).sum()


def policy_loss(part: Part, logprobs: Tokens, settings: LossSettings) -> Tokens:
    """The configured loss, per token."""
    match settings.name:
        case "reinforce":
            return _corrected(losses.reinforce(logprobs, part.advantages), logprobs, part, settings.correction)
        case "cispo":
            return losses.cispo(logprobs, part.behaviour, part.advantages, *settings.bounds)
        case "ppo_clip":
            return losses.ppo_clip(logprobs, part.behaviour, part.advantages, *settings.bounds)
        case "decoupled_ppo":
            clipped = losses.ppo_clip(logprobs, part.proximal, part.advantages, *settings.bounds)
            return _corrected(clipped, part.proximal, part, settings.correction)
        case "gspo":
            return losses.gspo(logprobs, part.behaviour, part.advantages, part.rows, *settings.bounds)
        case "kto":
            return losses.kto(logprobs, part.reference, part.advantages, part.rows, settings.beta, part.divergence)


def _corrected(values: Tokens, new: Tokens, part: Part, settings: CorrectionSettings | None) -> Tokens:
    if settings is None:
        return values
    match settings.by:
        case "token":
            weights = losses.importance(new, part.behaviour, settings.most)
        case "row":
            weights = losses.row_importance(new, part.behaviour, part.rows, settings.most)
        case "mask":
            weights = losses.masked_importance(new, part.behaviour, settings.least, settings.most)
    return weights * values


def clipped(part: Part, logprobs: Tokens, settings: LossSettings) -> Tokens:
    """1 where the configured loss clips or masks the token, else 0."""
    new = logprobs.detach()
    match settings.name:
        case "cispo":
            return losses.outside(_ratio(new, part.behaviour), *settings.bounds)
        case "ppo_clip":
            return losses.outside(_ratio(new, part.behaviour), *_around_one(settings))
        case "decoupled_ppo":
            return losses.outside(_ratio(new, part.proximal), *_around_one(settings))
        case "gspo":
            ratio = losses.row_means(new - part.behaviour, part.rows).exp()
            return losses.outside(ratio, *_around_one(settings))
        case _:
            return torch.zeros_like(new)


def _ratio(new: Tokens, old: Tokens) -> Tokens:
    return losses.log_ratio(new, old).exp()


def _around_one(settings: LossSettings) -> tuple[float, float]:
    low, high = settings.bounds
    return 1 - low, 1 + high
