"""The gateway's benchmark, for a moment and without the proxies that it is measured beside: it runs, and adds up."""

import pytest

from benchmarks.gateway import CONNECTIONS, measure, show

pytestmark = pytest.mark.integration


def test_the_benchmark_of_the_gateway_runs(capsys: pytest.CaptureFixture[str]) -> None:
    result = measure(["everloop"], rounds=1, seconds=0.2, turns=100)
    for mode in ("plain", "stream"):
        everloop = result["arms"]["everloop"][mode]
        assert everloop["load"]["requests"] >= CONNECTIONS
        assert everloop["half"]["per_second"] == everloop["load"]["per_second"] / 2
        assert result["added_p50_ms"][mode] == pytest.approx(
            everloop["alone"]["p50_ms"] - result["arms"]["direct"][mode]["alone"]["p50_ms"]
        )
    assert result["long_run"]["turns"] == 100
    assert set(result["long_run"]) == {"turns", "rss_mb_before", "rss_mb_after", "rss_mb"}
    show(result)
    assert "everloop" in capsys.readouterr().out
