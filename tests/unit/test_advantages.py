"""Advantages: baselines, the moving deviation, clipping, and data that says nothing."""

import numpy as np
import pytest

from ingest.contracts.dataset import Baseline
from trainer.advantages import advantages, baseline
from trainer.config import AdvantageSettings
from trainer.errors import TrainingStopped

SETTINGS = AdvantageSettings()


def test_a_baseline_is_shrunk_towards_zero_while_few_rewards_back_it():
    known = {"howto": Baseline(0.4, 8.0), "facts": Baseline(0.4, 0.0)}
    assert baseline("howto", known, 8) == pytest.approx(0.2)
    assert baseline("howto", known, 0) == pytest.approx(0.4)
    assert baseline("facts", known, 0) == 0.0
    assert baseline("never seen", known, 8) == 0.0


def test_the_first_run_uses_its_own_deviation():
    found = advantages([0.75, -0.25, 0.75, -0.25], ["a", "a", "b", "b"], {"a": Baseline(0.5, 8.0)}, None, SETTINGS)
    raw = np.array([0.5, -0.5, 0.75, -0.25])
    assert found.variance == pytest.approx(np.mean(raw**2))
    assert found.values == pytest.approx(raw / np.sqrt(np.mean(raw**2)))


def test_later_runs_move_the_deviation_slowly():
    found = advantages([1.0, -1.0], ["a", "a"], {}, 0.25, SETTINGS)
    assert found.variance == pytest.approx(0.7 * 0.25 + 0.3 * 1.0)
    assert found.values == pytest.approx(np.array([1.0, -1.0]) / np.sqrt(0.475))


def test_small_deviations_are_not_blown_up_and_large_advantages_are_clipped():
    small = advantages([0.01, -0.01], ["a", "a"], {}, None, SETTINGS)
    assert small.values == pytest.approx([0.1, -0.1])
    large = advantages([9.0, 0.0], ["a", "a"], {}, 0.0001, SETTINGS)
    assert large.values[0] == pytest.approx(9.0 / np.sqrt(large.variance), abs=3)
    assert abs(large.values).max() <= 3


@pytest.mark.parametrize("rewards", [[0.75] * 6, []])
def test_rewards_that_do_not_differ_stop_the_run_with_the_reason(rewards):
    with pytest.raises(TrainingStopped, match=r"reward|no row") as stopped:
        advantages(rewards, ["a"] * len(rewards), {"a": Baseline(0.1, 5.0)}, None, SETTINGS)
    assert stopped.value.monitor == "variance"
