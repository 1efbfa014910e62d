# ruff: noqa: F722 (shapes in jaxtyping annotations are strings)
"""Policy-gradient losses and divergence estimators: pure functions of one minibatch's output tokens.

Every tensor is flat: one element an output token, rows one after another. A loss returns one value a token,
in nats; the loop weighs, sums and normalises them, so that length normalisation is stated in one place.
`logprobs` carries the gradient; `behaviour` is what the engine logged when it sampled the token.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from trainer.config import LossSettings

MAX_LOG_RATIO = 10.0
"""Log-ratios are clamped to ±10 before exp: beyond it the estimate is useless and would only overflow."""


def log_ratio(new: Float[Tensor, " tokens"], old: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """log(new / old) per token, clamped to ±`MAX_LOG_RATIO`."""
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def reinforce(logprobs: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """REINFORCE (Williams 1992) on the advantage: -A log π. Unbiased only on the policy's own samples."""
    return -advantages * logprobs


def cispo(
    logprobs: Float[Tensor, " tokens"],
    behaviour: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    low: float,
    high: float,
) -> Float[Tensor, " tokens"]:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): -sg(clamp(π/μ, low, high)) A log π.

    The importance weight is clamped, not the update: every token keeps a gradient, whichever way it moves.
    """
    weights = log_ratio(logprobs.detach(), behaviour).exp().clamp(low, high)
    return -weights * advantages * logprobs


def ppo_clip(
    logprobs: Float[Tensor, " tokens"],
    behaviour: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
    low: float,
    high: float,
) -> Float[Tensor, " tokens"]:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7): -min(r A, clip(r, 1-low, 1+high) A)."""
    ratio = log_ratio(logprobs, behaviour).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def policy_loss(
    settings: LossSettings,
    logprobs: Float[Tensor, " tokens"],
    behaviour: Float[Tensor, " tokens"],
    advantages: Float[Tensor, " tokens"],
) -> Float[Tensor, " tokens"]:
    """The configured loss, per token."""
    match settings.name:
        case "reinforce":
            return reinforce(logprobs, advantages)
        case "cispo":
            return cispo(logprobs, behaviour, advantages, settings.low, settings.high)
        case "ppo_clip":
            return ppo_clip(logprobs, behaviour, advantages, settings.low, settings.high)


def clipped(settings: LossSettings, ratio: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """1 where the configured loss clips the token's ratio, else 0."""
    match settings.name:
        case "reinforce":
            return torch.zeros_like(ratio)
        case "cispo":
            return ((ratio < settings.low) | (ratio > settings.high)).to(ratio.dtype)
        case "ppo_clip":
            return ((ratio < 1 - settings.low) | (ratio > 1 + settings.high)).to(ratio.dtype)


def k1(logprobs: Float[Tensor, " tokens"], reference: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """KL(π ‖ reference) from π's own samples, log π - log ref (Schulman 2020): unbiased, noisy, of either sign."""
    return logprobs - reference


def k3(logprobs: Float[Tensor, " tokens"], reference: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """KL(π ‖ reference), d = log ref - log π: exp(d) - d - 1 (Schulman 2020): unbiased, less noisy, never negative."""
    d = log_ratio(reference, logprobs)
    return d.exp() - d - 1


def effective_samples(ratio: Float[Tensor, " tokens"]) -> float:
    """Effective sample size of importance weights over their number (Kish 1965): 1 on policy, 1/N at worst."""
    return float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))
