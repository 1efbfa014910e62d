"""Baselines: what reward a segment's turns get on average, from turns that the dataset does not contain.

One sample per prompt is the normal case in production, so an answer is compared with the segment's moving
average instead of with its siblings. It is computed from the lake before the dataset's cut, hence no rejected
checkpoint can rewind it, and without the dataset's own rows, hence no reward is compared with itself.

The trainer shrinks a mean towards 0 by n / (n + 8), where n is the effective count.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from ingest.contracts.dataset import Baseline

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SPAN = 64
"""The average's step is 1/min(n, SPAN): plain at first, then exponential."""

COUNT_CAP = 100
MEMORY = 1024
"""Newest rewards of a segment that are looked at: what is older would weigh under (1 − 1/SPAN)^960, 3e-7."""


def moving_average(rewards: Iterable[float]) -> Baseline:
    """Mean and effective count of rewards, oldest first."""
    mean, n = 0.0, 0
    for reward in rewards:
        n += 1
        mean += (reward - mean) / min(n, SPAN)
    return Baseline(mean=mean, count=float(min(n, COUNT_CAP)))


def segment_baselines(join: "DuckDBPyConnection") -> dict[str, Baseline]:
    """Of each segment in `chosen`, from the settled, trainable turns of `attributed` that are not in `chosen`."""
    rows = join.execute(
        """
        WITH past AS (
            SELECT
                a.segment, a.reward, a.finished_at, a.turn_id, a.sample,
                row_number() OVER (
                    PARTITION BY a.segment ORDER BY a.finished_at DESC, a.turn_id DESC, a.sample DESC
                ) AS place
            FROM attributed a
            WHERE a.state = 'settled' AND a.trainable
                AND a.segment IN (SELECT segment FROM chosen)
                AND NOT EXISTS (SELECT 1 FROM chosen c WHERE c.turn_id = a.turn_id AND c.sample = a.sample)
        )
        SELECT segment, reward FROM past WHERE place <= $memory ORDER BY segment, finished_at, turn_id, sample
        """,
        {"memory": MEMORY},
    ).fetchall()
    return {
        segment: moving_average(reward for _, reward in group)
        for segment, group in groupby(rows, key=lambda row: row[0])
    }
