"""The short form of `make faults`: a dozen kills on Kafka, and a few on the embedded log."""

from pathlib import Path

import pytest

from tests.faults.run import run
from tests.kafka import Broker

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


def test_a_dozen_kills_on_kafka_lose_nothing(broker: Broker, tmp_path: Path) -> None:
    result = run(tmp_path / "home", seed=5, kills=12, every=0.8, downtime=1.0, broker=broker)
    assert result.holds(), result
    assert sum(result.kills.values()) == 12


def test_a_few_kills_on_the_embedded_log_lose_nothing(tmp_path: Path) -> None:
    result = run(tmp_path / "home", seed=6, kills=4, every=0.8, downtime=1.0, broker=None)
    assert result.holds(), result
