"""Paired statistics against scipy, and that what they promise is what happens by chance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from evaluation.statistics import paired, spend
from evaluation.verdict import decide
from ingest.contracts.verdict import Decision

UNIT = st.floats(0, 1, allow_nan=False, width=32)


def scores(rng: np.random.Generator, shift: float = 0.0, questions: int = 32, answers: int = 8) -> np.ndarray:
    """Accept probabilities as a simulator gives them: questions differ, answers differ less."""
    level = rng.uniform(0.2, 0.8, size=(questions, 1)) + shift
    return np.clip(level + rng.normal(0, 0.25, size=(questions, answers)), 0, 1)


def test_bounds_are_those_of_scipys_paired_test() -> None:
    rng = np.random.default_rng(1)
    a, b = scores(rng), scores(rng, 0.05)
    ours = paired(a, b, 0.05)
    theirs = stats.ttest_rel(b.mean(axis=1), a.mean(axis=1)).confidence_interval(0.90)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_first_look_at_32_questions_is_the_recipes_170_standard_errors() -> None:
    rng = np.random.default_rng(2)
    result = paired(scores(rng), scores(rng), spend(0.10, 1, "series"))
    error = result.differences.std(ddof=1) / np.sqrt(32)
    assert (result.high - result.difference) / error == pytest.approx(1.70, abs=0.01)


@given(arrays(np.float64, (6, 3), elements=UNIT), arrays(np.float64, (6, 3), elements=UNIT))
def test_swapping_the_sides_mirrors_the_interval(a: np.ndarray, b: np.ndarray) -> None:
    one, other = paired(a, b, 0.05), paired(b, a, 0.05)
    assert one.low == pytest.approx(-other.high, abs=1e-9)
    assert one.low <= one.difference <= one.high


@given(arrays(np.float64, (6, 3), elements=UNIT), arrays(np.float64, (6, 3), elements=UNIT), st.randoms())
def test_the_order_of_questions_and_repeated_answers_do_not_matter(a: np.ndarray, b: np.ndarray, random) -> None:
    order = list(range(6))
    random.shuffle(order)
    one = paired(a, b, 0.05)
    shuffled = paired(a[order], b[order], 0.05)
    assert (shuffled.low, shuffled.high) == pytest.approx((one.low, one.high), abs=1e-9)
    doubled = paired(np.hstack([a, a]), np.hstack([b, b]), 0.05)
    assert (doubled.low, doubled.high) == pytest.approx((one.low, one.high), abs=1e-9)


def test_of_a_policys_life_alpha_is_spent_once() -> None:
    """A policy that gets no better: rejected, it begins anew, and is still promoted no more often than alpha."""
    rng, lives, promoted = np.random.default_rng(3), 500, 0
    for _ in range(lives):
        holds = 0
        for look in range(1, 13):
            level = rng.uniform(0.2, 0.8, size=(32, 1))
            a, b = (np.clip(level + rng.normal(0, 0.25, size=(32, 8)), 0, 1) for _ in range(2))
            decision, _ = decide(paired(a, b, spend(0.10, look, "series")), (), holds, 3)
            holds = holds + 1 if decision is Decision.HOLD else 0
            if decision is Decision.PROMOTE:
                promoted += 1
                break
    assert promoted / lives < 0.10 + 3 * (0.10 * 0.90 / lives) ** 0.5


def test_a_real_gain_of_the_recipes_size_is_found() -> None:
    rng, found = np.random.default_rng(4), 0
    for _ in range(200):
        level = rng.uniform(0.2, 0.7, size=(32, 1))
        a = np.clip(level + rng.normal(0, 0.25, size=(32, 8)), 0, 1)
        b = np.clip(level + 0.1 + rng.normal(0, 0.25, size=(32, 8)), 0, 1)
        found += decide(paired(a, b, 0.05), (), 0, 3)[0] is Decision.PROMOTE
    assert found > 190


def test_three_questions_of_32_are_not_enough_whatever_t_says() -> None:
    a = np.zeros((32, 1))
    b = a.copy()
    b[:3] = 1
    result = paired(a, b, 0.05)
    assert result.low > 0
    assert not result.enough_differ
    assert decide(result, (), 0, 3)[0] is Decision.HOLD


@given(st.integers(1, 50), st.floats(0.01, 0.4))
def test_the_series_spends_alpha_and_no_more(looks: int, alpha: float) -> None:
    spent = sum(spend(alpha, look, "series") for look in range(1, looks + 1))
    assert spent == pytest.approx(alpha * looks / (looks + 1))
    assert spend(alpha, looks, "constant") == alpha / 2


def test_shapes_and_looks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="two arrays"):
        paired(np.zeros((4, 2)), np.zeros((4, 3)), 0.05)
    with pytest.raises(ValueError, match="count from 1"):
        spend(0.1, 0, "series")
