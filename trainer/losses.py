"""Policy-gradient losses and divergence estimators: pure functions of one minibatch's output tokens.

Every tensor is flat: one element an output token, the tokens of a row in order. `rows` numbers the row of each token
from 0 on; losses of whole rows give each token of a row the row's value. A loss returns one value a token, in nats;
the batch's weights say how tokens add up (`trainer.batches`), so that length normalisation is stated in one place.

Four policies are told apart. `logprobs` are of the weights that are being trained, and carry the gradient; `behaviour`
is what the engine logged when it sampled the token; `proximal` is of the weights with which the run started; a
`reference` is what the policy shall stay close to.

Invariant: no loss looks at a row other than the token's own, but for KTO's zero point, which is an argument.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""Log-ratios are clamped to ±10 before exp: beyond it the estimate is useless and would only overflow."""

Tokens = Float[Tensor, " tokens"]
Rows = Int[Tensor, " tokens"]


def log_ratio(new: Tokens, old: Tokens) -> Tokens:
    """log(new / old) per token, clamped to ±`MAX_LOG_RATIO`."""
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def row_sums(values: Tokens, rows: Rows) -> Tokens:
    """Each token gets the sum over its row."""
    return values.new_zeros(int(rows[-1]) + 1).index_add(0, rows, values)[rows]


def row_means(values: Tokens, rows: Rows) -> Tokens:
    """Each token gets the mean over its row."""
    return row_sums(values, rows) / row_sums(torch.ones_like(values), rows)


# -- losses


def reinforce(logprobs: Tokens, advantages: Tokens) -> Tokens:
    """REINFORCE (Williams 1992) on the advantage: -A log π. Unbiased only on the policy's own samples.

    With leave-one-out advantages of a group it is RLOO (Ahmadian et al. 2024, arXiv 2402.14740).
    """
    return -advantages * logprobs


def cispo(logprobs: Tokens, behaviour: Tokens, advantages: Tokens, low: float, high: float) -> Tokens:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): -sg(clamp(π/μ, low, high)) A log π.

    The importance weight is clamped, not the update: every token keeps a gradient, whichever way it moves.
    """
    weights = log_ratio(logprobs.detach(), behaviour).exp().clamp(low, high)
    return -weights * advantages * logprobs


def ppo_clip(logprobs: Tokens, old: Tokens, advantages: Tokens, low: float, high: float) -> Tokens:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7): -min(r A, clip(r, 1-low, 1+high) A).

    With advantages normalised in a group it is GRPO's (Shao et al. 2024, arXiv 2402.03300, eq. 3). `old` is the
    behaviour policy; decoupled PPO (Hilton et al. 2022, arXiv 2110.00641; AReaL, arXiv 2505.24298) has the
    proximal one there, and multiplies by `importance(proximal, behaviour)`.
    """
    ratio = log_ratio(logprobs, old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def gspo(logprobs: Tokens, behaviour: Tokens, advantages: Tokens, rows: Rows, low: float, high: float) -> Tokens:
    """GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 5 and 7): -min(s A, clip(s, 1-low, 1+high) A) of a whole row.

    s = exp(mean over the row's tokens of log π - log μ). Bounds are far smaller than PPO's: 3e-4, 4e-4 in the paper.
    """
    ratio = log_ratio(row_means(logprobs - behaviour, rows), torch.zeros_like(behaviour)).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def kto(
    logprobs: Tokens, reference: Tokens, advantages: Tokens, rows: Rows, beta: float, zero: float | Tensor
) -> Tokens:
    """KTO (Ethayarajh et al. 2024, arXiv 2402.01306): 1 - σ(±beta (log π(y)/ref(y) - zero)), times |A|.

    Needs no baseline: + where the row was accepted (A > 0), - where it was rejected, and |A| is the paper's lambda,
    so that both kinds can be made to weigh the same. `zero` is KL(π ‖ reference) of the minibatch in nats a row, never
    negative and without gradient: from there an answer gains or loses. (The paper estimates it from answers paired
    with the wrong prompts; in production every row is the policy's own sample, so that the divergence itself is seen.)
    """
    gain = row_sums(logprobs - reference, rows) - zero
    return advantages.abs() * (1 - torch.sigmoid(beta * advantages.sign() * gain))


# -- importance weights, where samples are not the policy's own


def importance(new: Tokens, behaviour: Tokens, most: float) -> Tokens:
    """Truncated importance sampling by token, min(new/μ, most), without gradient (Ionides 2008; for the gap between
    engine and trainer: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")."""
    return log_ratio(new.detach(), behaviour).exp().clamp(max=most)


def row_importance(new: Tokens, behaviour: Tokens, rows: Rows, most: float) -> Tokens:
    """The same by row: the ratio of whole answers, the product of their tokens' ratios, cut at `most`.

    Unbiased where nothing is cut, as by token it is not; in long answers most rows reach a bound.
    """
    whole = row_sums(new.detach() - behaviour, rows)
    return log_ratio(whole, torch.zeros_like(whole)).exp().clamp(max=most)


def masked_importance(new: Tokens, behaviour: Tokens, least: float, most: float) -> Tokens:
    """IcePop (Ling team 2025, arXiv 2510.18855): the ratio within [least, most], 0 outside, without gradient.

    Tokens on which engine and trainer disagree so much teach nothing.
    """
    ratio = log_ratio(new.detach(), behaviour).exp()
    return torch.where((ratio >= least) & (ratio <= most), ratio, 0.0)


# -- divergences


def k1(logprobs: Tokens, reference: Tokens) -> Tokens:
    """KL(π ‖ reference) from π's own samples, log π - log ref (Schulman 2020): unbiased, noisy, of either sign.

    As a loss its gradient has the mean zero on the policy's own samples: use it as a measure.
    """
    return logprobs - reference


def k2(logprobs: Tokens, reference: Tokens) -> Tokens:
    """KL(π ‖ reference), (log π - log ref)² / 2 (Schulman 2020): biased as a value, little noise.

    As a loss its gradient is the divergence's own, on the policy's own samples (Tang & Munos 2025, arXiv 2506.09477).
    """
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tokens, reference: Tokens) -> Tokens:
    """KL(π ‖ reference), d = log ref - log π: exp(d) - d - 1 (Schulman 2020): unbiased, less noisy, never negative.

    As a loss its gradient is that of KL(reference ‖ π), on the policy's own samples.
    """
    d = log_ratio(reference, logprobs)
    return d.exp() - d - 1


# -- what a step looked like


def outside(ratio: Tokens, least: float, most: float) -> Tokens:
    """1 where a ratio is outside the bounds, else 0."""
    return ((ratio < least) | (ratio > most)).to(ratio.dtype)


def effective_samples(ratio: Tokens) -> float:
    """Effective sample size of importance weights over their number (Kish 1965): 1 on policy, 1/N at worst."""
    return float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))
