"""What settings make of a part: which policy stands where, what is weighed, what counts as clipped."""

import math

import pytest
import torch
from pydantic import ValidationError

from trainer.batches import Part, Sequences
from trainer.config import BOUNDS, CorrectionSettings, LossSettings
from trainer.objective import clipped, part_loss, policy_loss

NEW, BEHAVIOUR = [-0.5, -2.0, -1.0, -3.0], [-0.9, -0.4, -1.0, -5.0]
PROXIMAL, REFERENCE = [-0.6, -1.5, -1.1, -2.9], [-0.7, -2.2, -0.8, -3.0]
ADVANTAGES, WEIGHTS = [1.0, 1.0, -0.5, -0.5], [0.5, 0.5, 0.25, 0.25]


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def part() -> Part:
    return Part(
        Sequences(torch.zeros(2, 3, dtype=torch.int64), torch.arange(4), torch.arange(4)),
        rows=torch.tensor([0, 0, 1, 1]),
        behaviour=tensor(BEHAVIOUR),
        proximal=tensor(PROXIMAL),
        reference=tensor(REFERENCE),
        advantages=tensor(ADVANTAGES),
        weights=tensor(WEIGHTS),
        divergence=0.2,
    )


def surrogate(new: float, old: float, advantage: float) -> float:
    ratio = math.exp(new - old)
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)


@pytest.mark.parametrize("by", ["token", "row", "mask"])
def test_decoupled_ppo_clips_around_the_start_and_weighs_by_the_start_over_what_sampled(by):
    settings = LossSettings(name="decoupled_ppo", correction=CorrectionSettings(by=by, least=0.5, most=1.4))
    ratios = [math.exp(p - b) for p, b in zip(PROXIMAL, BEHAVIOUR, strict=True)]
    weights = {
        "token": [min(r, 1.4) for r in ratios],
        "row": [min(ratios[0] * ratios[1], 1.4)] * 2 + [min(ratios[2] * ratios[3], 1.4)] * 2,
        "mask": [r if 0.5 <= r <= 1.4 else 0.0 for r in ratios],
    }[by]
    expected = [w * surrogate(n, p, a) for w, n, p, a in zip(weights, NEW, PROXIMAL, ADVANTAGES, strict=True)]
    assert policy_loss(part(), tensor(NEW), settings).tolist() == pytest.approx(expected)


def test_reinforce_may_be_weighed_by_what_is_trained_over_what_sampled():
    settings = LossSettings(name="reinforce", correction=CorrectionSettings(most=1.2))
    weights = [min(math.exp(n - b), 1.2) for n, b in zip(NEW, BEHAVIOUR, strict=True)]
    expected = [-w * a * n for w, a, n in zip(weights, ADVANTAGES, NEW, strict=True)]
    assert policy_loss(part(), tensor(NEW), settings).tolist() == pytest.approx(expected)


def test_kto_stands_on_the_reference_and_the_divergence_of_its_minibatch():
    settings = LossSettings(name="kto", normalize="sequence", beta=0.5)
    gains = [sum(NEW[:2]) - sum(REFERENCE[:2]) - 0.2, sum(NEW[2:]) - sum(REFERENCE[2:]) - 0.2]
    accepted, rejected = (1 - 1 / (1 + math.exp(-0.5 * g)) for g in (gains[0], -gains[1]))
    expected = [accepted] * 2 + [0.5 * rejected] * 2
    assert policy_loss(part(), tensor(NEW), settings).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_part_adds_its_divergence_and_weighs_its_tokens(estimator):
    settings = LossSettings(name="reinforce", kl=0.3, kl_estimator=estimator)
    expected = 0.0
    for new, reference, advantage, weight in zip(NEW, REFERENCE, ADVANTAGES, WEIGHTS, strict=True):
        d = reference - new
        divergence = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[estimator]
        expected += weight * (-advantage * new + 0.3 * divergence)
    assert float(part_loss(part(), tensor(NEW), settings)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LossSettings(name="reinforce"), [0, 0, 0, 0]),
        (LossSettings(name="kto", normalize="sequence"), [0, 0, 0, 0]),
        (LossSettings(name="cispo", low=0.5, high=2.0), [0, 1, 0, 1]),
        (LossSettings(name="ppo_clip", low=0.2, high=0.2), [1, 1, 0, 1]),
        (LossSettings(name="decoupled_ppo", low=0.2, high=0.2), [0, 1, 0, 0]),
        (LossSettings(name="gspo", low=0.5, high=0.5, normalize="sequence"), [0, 0, 1, 1]),
    ],
)
def test_which_tokens_count_as_clipped(settings, expected):
    assert clipped(part(), tensor(NEW), settings).tolist() == expected


@pytest.mark.parametrize("name", BOUNDS)
def test_a_loss_has_bounds_of_its_own(name):
    normalize = "sequence" if name == "gspo" else "constant"
    assert LossSettings(name=name, normalize=normalize).bounds == BOUNDS[name]
    assert LossSettings(name=name, normalize=normalize, high=0.7).bounds == (BOUNDS[name][0], 0.7)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "reinforce", "high": 2.0}, "reinforce clips nothing: leave out low and high"),
        ({"name": "ppo_clip", "correction": {}}, "leave out correction"),
        ({"name": "gspo"}, 'set normalize = "sequence"'),
        ({"name": "kto"}, 'set normalize = "sequence"'),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        LossSettings.model_validate(settings)
