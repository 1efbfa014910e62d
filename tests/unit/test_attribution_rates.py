"""Response rates: by arm, weight version and segment."""

from pathlib import Path

import pytest

from ingest.attribution import Rate
from ingest.config import AttributionSettings, RewardSettings
from tests.attributions import report
from tests.lakes import feedback, land, turn


@pytest.mark.parametrize(
    ("rule", "segment"), [("key", "k"), ("none", ""), ("metadata:kind", "howto"), ("metadata:absent", "")]
)
def test_the_segment_follows_its_rule(tmp_path: Path, rule: str, segment: str) -> None:
    land(tmp_path, "turns", turn("a", request='{"metadata":{"kind":"howto"}}'))
    (rate,) = report(tmp_path, rewards=RewardSettings(segment=rule)).rates
    assert rate.segment == segment


def test_a_turn_is_as_old_as_any_window(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    settings = AttributionSettings(window_seconds=1, history_seconds=1e10)
    assert [rate.age for rate in report(tmp_path, now=1.8e9, settings=settings).ages] == [4]


def test_response_rates_by_arm_version_and_segment(tmp_path: Path) -> None:
    land(
        tmp_path, "turns", *[turn(str(i), version="v2" if i > 2 else "v1") for i in range(5)], turn("x", finish="abort")
    )
    land(tmp_path, "feedback", feedback("0"), feedback("1", "reject"), feedback("3"))
    assert report(tmp_path, now=150).rates == (
        Rate(arm="champion", version="v1", segment="k", turns=3, open=1, answered=2, positive=1),
        Rate(arm="champion", version="v2", segment="k", turns=2, open=1, answered=1, positive=1),
    )
