"""How many gateway workers live, as control counts them."""

from serving.control.shared import LiveWorkers


def test_workers_are_counted_once_control_knows_them_all_and_forgotten_when_silent() -> None:
    now = 0.0
    workers = LiveWorkers(lambda: now, lost_seconds=5.0)
    assert workers.heard("a") is None
    now = 4.0
    assert workers.heard("b") is None
    assert workers.heard("a") is None
    now = 5.0
    assert workers.heard("a") == 2
    assert workers.heard("c") == 3
    now = 9.5
    assert workers.heard("a") == 2
    now = 20.0
    assert workers.heard("a") == 1
