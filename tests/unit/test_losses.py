"""Each loss and estimator against a calculation in plain Python, and each gradient against its formula."""

import math

import pytest
import torch

from trainer import losses
from trainer.config import LossSettings

NEW = [-0.5, -2.0, -1.0, -3.0, -0.1]
OLD = [-0.7, -1.0, -1.0, -0.5, -4.0]
REFERENCE = [-0.6, -2.5, -0.9, -2.0, -0.2]
ADVANTAGES = [1.0, -0.5, 2.0, -1.5, 0.7]


@pytest.fixture
def new() -> torch.Tensor:
    return torch.tensor(NEW, dtype=torch.float64, requires_grad=True)


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_reinforce(new):
    loss = losses.reinforce(new, tensor(ADVANTAGES))
    assert loss.tolist() == pytest.approx([-a * n for a, n in zip(ADVANTAGES, NEW, strict=True)])
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx([-a for a in ADVANTAGES])


def test_cispo_clamps_the_weight_and_keeps_the_gradient(new):
    loss = losses.cispo(new, tensor(OLD), tensor(ADVANTAGES), 0.0, 2.0)
    weights = [min(math.exp(n - o), 2.0) for n, o in zip(NEW, OLD, strict=True)]
    assert weights[-1] == 2.0, "the case must clip somewhere"
    assert loss.tolist() == pytest.approx([-w * a * n for w, a, n in zip(weights, ADVANTAGES, NEW, strict=True)])
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx([-w * a for w, a in zip(weights, ADVANTAGES, strict=True)])


def test_ppo_clip_stops_the_gradient_where_it_would_go_further(new):
    loss = losses.ppo_clip(new, tensor(OLD), tensor(ADVANTAGES), 0.2, 0.2)
    expected, gradient = [], []
    for n, o, a in zip(NEW, OLD, ADVANTAGES, strict=True):
        ratio = math.exp(n - o)
        held = min(max(ratio, 0.8), 1.2)
        expected.append(-min(ratio * a, held * a))
        stopped = (a > 0 and ratio > 1.2) or (a < 0 and ratio < 0.8)
        gradient.append(0.0 if stopped else -ratio * a)
    assert loss.tolist() == pytest.approx(expected)
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx(gradient)
    assert gradient.count(0.0) >= 2


def test_divergence_estimators():
    k1 = losses.k1(tensor(NEW), tensor(REFERENCE)).tolist()
    k3 = losses.k3(tensor(NEW), tensor(REFERENCE)).tolist()
    assert k1 == pytest.approx([n - r for n, r in zip(NEW, REFERENCE, strict=True)])
    assert k3 == pytest.approx([math.exp(r - n) - (r - n) - 1 for n, r in zip(NEW, REFERENCE, strict=True)])
    assert min(k3) >= 0


def test_k1_and_k3_estimate_the_divergence():
    p = torch.softmax(torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64), 0)
    q = torch.softmax(torch.tensor([0.1, 0.2, 0.0, -0.5], dtype=torch.float64), 0)
    exact = float((p * (p / q).log()).sum())
    assert float((p * losses.k1(p.log(), q.log())).sum()) == pytest.approx(exact)
    assert float((p * losses.k3(p.log(), q.log())).sum()) == pytest.approx(exact)


def test_ratios_are_bounded():
    assert math.isfinite(float(losses.k3(tensor([-500.0]), tensor([0.0]))[0]))
    assert float(losses.log_ratio(tensor([0.0]), tensor([-500.0]))[0]) == losses.MAX_LOG_RATIO


def test_effective_samples():
    assert losses.effective_samples(tensor([1.0] * 8)) == pytest.approx(1.0)
    assert losses.effective_samples(tensor([1000.0, 1e-9, 1e-9, 1e-9])) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LossSettings(name="reinforce"), [0, 0, 0, 0]),
        (LossSettings(name="cispo", low=0.5, high=2.0), [1, 0, 0, 1]),
        (LossSettings(name="ppo_clip", low=0.2, high=0.2), [1, 0, 1, 1]),
    ],
)
def test_clipped_says_which_tokens_the_loss_clips(settings, expected):
    ratio = tensor([0.1, 1.0, 1.5, 3.0])
    assert losses.clipped(settings, ratio).tolist() == expected
    loss = losses.policy_loss(settings, ratio.log(), tensor([0.0] * 4), tensor([1.0] * 4))
    assert loss.shape == (4,)
