"""Each monitor trips on the step that breaks its bound, and on no other."""

import pickle
from dataclasses import replace

import pytest

from trainer.config import MonitorSettings, StalenessSettings
from trainer.errors import TrainingStopped
from trainer.monitors import Anchor, StepMetrics, check_length, check_staleness, check_step

HEALTHY = StepMetrics(
    step=3,
    loss=-0.1,
    reward=0.2,
    kl=0.1,
    effective_samples=0.9,
    clipped=0.01,
    gradient_norm=1.5,
    entropy=0.8,
    logprob_gap=0.05,
    learning_rate=7e-4,
    tokens=300,
    seconds=1.0,
)
ANCHOR = Anchor(entropy=1.0, output_tokens=20.0)
SETTINGS = MonitorSettings()


def test_a_healthy_step_passes():
    check_step(HEALTHY, ANCHOR, SETTINGS)
    check_length(18.0, ANCHOR, SETTINGS)
    check_staleness(2, 10, StalenessSettings())


@pytest.mark.parametrize(
    ("monitor", "change"),
    [
        ("nan", {"loss": float("nan")}),
        ("nan", {"gradient_norm": float("inf")}),
        ("kl", {"kl": 5.0}),
        ("effective_samples", {"effective_samples": 0.01}),
        ("clipped", {"clipped": 0.9}),
        ("gradient_norm", {"gradient_norm": 1e4}),
        ("entropy", {"entropy": 0.01}),
    ],
)
def test_a_step_beyond_a_bound_stops_the_run(monitor, change):
    with pytest.raises(TrainingStopped) as stopped:
        check_step(replace(HEALTHY, **change), ANCHOR, SETTINGS)
    assert stopped.value.monitor == monitor
    assert "step 3" in stopped.value.detail


@pytest.mark.parametrize("length", [4.0, 100.0])
def test_length_drift_stops_the_run(length):
    with pytest.raises(TrainingStopped, match="length"):
        check_length(length, ANCHOR, SETTINGS)


def test_too_many_stale_rows_stop_the_run():
    with pytest.raises(TrainingStopped, match="6 of 10 rows"):
        check_staleness(6, 10, StalenessSettings())


def test_a_stop_survives_the_way_between_processes():
    stop = pickle.loads(pickle.dumps(TrainingStopped("kl", "too far")))
    assert (stop.monitor, stop.detail) == ("kl", "too far")
