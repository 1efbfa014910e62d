"""The benchmark of ingest, in miniature: every stage runs, and its figures add up."""

from pathlib import Path

import pytest

from benchmarks.ingest import PARTS, TIMES, measure
from benchmarks.ingest_turns import RAW_BYTES, TOKENS

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


def test_the_benchmark_of_ingest_runs(tmp_path: Path) -> None:
    result = measure(tmp_path, list(PARTS), rounds=1, turns=200, joined=1000, signals=300, longest=16)
    [seen] = result["rounds"]
    assert result["append_turns_per_s"] == seen["append"]["per_s"]
    assert result["forward_ratio"] == seen["forward"]["per_s"] / seen["produce"]["per_s"]
    assert set(result["land_turns_per_s"]) == {"embedded", "kafka"}
    assert sum(result["attribution_states"].values()) == 1000
    assert 0 < result["freeze_rows"] <= 200
    assert result["freeze_turns_per_s"] > 0
    small, large = result["memory_peak_mb"]["land_kafka"]
    assert result["memory_growth_10x"]["land_kafka"] == large / small < TIMES
    assert result["bytes_per_token"]["raw"] == RAW_BYTES / TOKENS
    short, long = result["session_bytes"]
    assert long["kept"] < 2.2 * short["kept"], "twice as long takes twice as much"
    assert long["kept"] < long["once"] < long["landed"] < long["whole"]
    assert list(tmp_path.glob("tmp*")) == [], "what was written is removed"
