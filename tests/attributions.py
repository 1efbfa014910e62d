"""What the join makes of a test's lake: one policy, `p`, at a time of one's choice."""

from pathlib import Path
from typing import Any

from ingest.attribution import AttributionReport, Cut, attribute, attributed
from ingest.config import AttributionSettings, RewardSettings

SETTINGS = AttributionSettings(window_seconds=60)
REWARDS = RewardSettings()


def report(lake: Path, now: float = 1000.0, **options: Any) -> AttributionReport:
    return attribute(
        lake=lake,
        policy="p",
        settings=options.pop("settings", SETTINGS),
        rewards=options.pop("rewards", REWARDS),
        now=now,
        watermark=options.pop("watermark", now),
        used_datasets=lake / "none",
    )


def states(lake: Path, now: float = 1000.0, **options: Any) -> dict[str, tuple[str, int, float | None]]:
    """Turn id → state, revision, reward."""
    cut = Cut(now, options.pop("watermark", now))
    rules, rewards = options.pop("settings", SETTINGS), options.pop("rewards", REWARDS)
    with attributed(lake, "p", rules, rewards, cut, ()) as join:
        rows = join.execute("SELECT turn_id, state, revision, reward FROM attributed").fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}
