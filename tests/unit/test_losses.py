"""Each loss and estimator against a calculation in plain Python, and each gradient against its formula."""

import math

import pytest
import torch

from trainer import losses

NEW = [-0.5, -2.0, -1.0, -3.0, -0.1]
OLD = [-0.7, -1.0, -1.0, -0.5, -4.0]
REFERENCE = [-0.6, -2.5, -0.9, -2.0, -0.2]
ADVANTAGES = [1.0, -0.5, 2.0, -1.5, 0.7]
ROWS = [0, 0, 1, 1, 1]
OF_ROWS = [1.0, 1.0, -0.5, -0.5, -0.5]
"""One advantage a row, as losses of whole rows have it."""


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


def by_row(values: list[float]) -> list[list[float]]:
    return [[v for v, row in zip(values, ROWS, strict=True) if row == number] for number in (0, 1)]


def test_gspo_clips_whole_rows(new):
    loss = losses.gspo(new, tensor(OLD), tensor(OF_ROWS), torch.tensor(ROWS), 0.3, 0.3)
    expected, gradient = [], []
    for news, olds, advantages in zip(by_row(NEW), by_row(OLD), by_row(OF_ROWS), strict=True):
        ratio = math.exp(sum(n - o for n, o in zip(news, olds, strict=True)) / len(news))
        held, a = min(max(ratio, 0.7), 1.3), advantages[0]
        expected += [-min(ratio * a, held * a)] * len(news)
        stopped = (a > 0 and ratio > 1.3) or (a < 0 and ratio < 0.7)
        # Of the row's mean loss: each token moves the ratio by a share.
        gradient += [0.0 if stopped else -ratio * a / len(news)] * len(news)
    assert loss.tolist() == pytest.approx(expected)
    (loss / tensor([2.0, 2.0, 3.0, 3.0, 3.0])).sum().backward()
    assert new.grad.tolist() == pytest.approx(gradient)


def test_gspo_lets_go_of_a_row_that_went_far_enough(new):
    loss = losses.gspo(new, tensor([n - 1 for n in NEW]), tensor([1.0] * 5), torch.tensor(ROWS), 3e-4, 4e-4)
    assert loss.tolist() == pytest.approx([-1.0004] * 5)
    loss.sum().backward()
    assert new.grad.tolist() == [0.0] * 5


@pytest.mark.parametrize("zero", [0.0, 0.4])
def test_kto_pulls_accepted_rows_up_and_pushes_rejected_ones_down(new, zero):
    loss = losses.kto(new, tensor(REFERENCE), tensor(OF_ROWS), torch.tensor(ROWS), 0.5, zero)
    expected, gradient = [], []
    for news, references, advantages in zip(by_row(NEW), by_row(REFERENCE), by_row(OF_ROWS), strict=True):
        gain, a = sum(news) - sum(references) - zero, advantages[0]
        value = 1 / (1 + math.exp(-0.5 * gain if a > 0 else 0.5 * gain))
        expected += [abs(a) * (1 - value)] * len(news)
        gradient += [-a * 0.5 * value * (1 - value)] * len(news)
    assert loss.tolist() == pytest.approx(expected)
    (loss / tensor([2.0, 2.0, 3.0, 3.0, 3.0])).sum().backward()
    assert new.grad.tolist() == pytest.approx(gradient)


def test_importance_is_cut_by_token_by_row_or_masked(new):
    ratios = [math.exp(n - o) for n, o in zip(NEW, OLD, strict=True)]
    assert losses.importance(new, tensor(OLD), 1.5).tolist() == pytest.approx([min(r, 1.5) for r in ratios])
    masked = [r if 0.3 <= r <= 2 else 0.0 for r in ratios]
    assert 0 < masked.count(0.0) < 4
    assert losses.masked_importance(new, tensor(OLD), 0.3, 2).tolist() == pytest.approx(masked)
    whole = [math.prod(ratios[:2])] * 2 + [min(math.prod(ratios[2:]), 1.5)] * 3
    assert losses.row_importance(new, tensor(OLD), torch.tensor(ROWS), 1.5).tolist() == pytest.approx(whole)
    assert not losses.row_importance(new, tensor(OLD), torch.tensor(ROWS), 1.5).requires_grad


def test_truncated_importance_by_row_is_unbiased_where_nothing_is_cut():
    """Two tokens of two words each: the mean over all answers of the behaviour policy is the target's."""
    behaviour, target = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.4, 0.6]).double()
    reward = torch.tensor([[1.0, -2.0], [0.5, 3.0]]).double()
    found = 0.0
    for first in (0, 1):
        for second in (0, 1):
            old, new = behaviour[[first, second]].log(), target[[first, second]].log()
            weight = losses.row_importance(new, old, torch.tensor([0, 0]), 100.0)[0]
            found += float(old.sum().exp() * weight * reward[first, second])
    assert found == pytest.approx(float((torch.outer(target, target) * reward).sum()))


def test_divergence_estimators():
    k1 = losses.k1(tensor(NEW), tensor(REFERENCE)).tolist()
    k3 = losses.k3(tensor(NEW), tensor(REFERENCE)).tolist()
    assert k1 == pytest.approx([n - r for n, r in zip(NEW, REFERENCE, strict=True)])
    assert k3 == pytest.approx([math.exp(r - n) - (r - n) - 1 for n, r in zip(NEW, REFERENCE, strict=True)])
    assert min(k3) >= 0
    k2 = losses.k2(tensor(NEW), tensor(REFERENCE)).tolist()
    assert k2 == pytest.approx([(n - r) ** 2 / 2 for n, r in zip(NEW, REFERENCE, strict=True)])


@pytest.mark.parametrize(("estimator", "gives"), [("k1", "nothing"), ("k2", "forward"), ("k3", "backward")])
def test_what_the_estimators_do_as_losses(estimator, gives):
    """The mean of the gradient over the policy's own samples, exactly: what its docstring says."""
    weights = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.softmax(torch.tensor([0.1, 0.2, 0.0, -0.5], dtype=torch.float64), 0)
    p = torch.softmax(weights, 0)
    (found,) = torch.autograd.grad((p.detach() * getattr(losses, estimator)(p.log(), q.log())).sum(), weights)
    p = torch.softmax(weights, 0)
    divergence = {"nothing": 0 * p.sum(), "forward": (p * (p / q).log()).sum(), "backward": (q * (q / p).log()).sum()}
    (expected,) = torch.autograd.grad(divergence[gives], weights)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


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


def test_outside():
    assert losses.outside(tensor([0.1, 0.5, 1.0, 2.0, 3.0]), 0.5, 2.0).tolist() == [1, 0, 0, 0, 1]
