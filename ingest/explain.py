"""Why a turn got the reward that it has: every signal that speaks of it, and what became of each.

The join is run over the turn's neighbourhood alone, the turns of its session and those that share its chain, and what
was said of them: nothing else has a part in its state and its reward. So it takes as long on a large lake as two looks
for a value in a column.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.attribution import TURN_COLUMNS, Cut, joined
from ingest.config import AttributionSettings, LakePlace, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest
from ingest.datasets import accepted_ids
from ingest.lake import ERASURES, FEEDBACK, TURNS, read

_EVER = 1e12
"""Seconds of history: a turn of whatever age is explained."""


class UnknownTurn(LookupError):
    """There is no such turn in the lake, or nothing says how it is rewarded: says which."""

    def __str__(self) -> str:
        return str(self.args[0])


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one signal did to one turn's reward.

    `status`: `counted`; `revised` (a later one of the same source took its place), `duplicate` (sent twice),
    `conflicting` (with the idempotency key of another one, but not its content), `unauthorised` (the sender's key did
    not make the turn, or it names another user), `late` (after the window), `worthless` (no number: a comment, an edit
    of an answer that is not known, an implicit signal whose rule has none). `number` is what the specification makes of
    it, `contribution` the same where it counted, else 0.
    """

    feedback_id: str
    kind: str
    source: str
    target: str
    value: float | None
    received_at: float
    status: str
    number: float | None
    contribution: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's state and reward, and all that made them. `total` is what the counted signals add up to, `reward` that
    within ± `limit`; None where none counted. `weight` is that of its row in the dataset that it entered."""

    turn_id: str
    sample: int
    policy: str
    state: str
    revision: int
    total: float | None
    limit: float
    reward: float | None
    dataset_id: str | None
    weight: float | None
    signals: tuple[Contribution, ...]
    """In the order of receipt."""


def explain(
    lake: LakePlace,
    turn_id: str,
    sample: int = 0,
    *,
    rules: Mapping[str, tuple[AttributionSettings, RewardSettings]],
    datasets: Path,
    now: float,
    watermark: float,
) -> Explanation:
    """Of a turn, at `now` (Unix seconds, as `watermark`), with the settings of each policy by its name.

    Raises `UnknownTurn`."""
    turn = _turn(lake, turn_id, sample)
    if turn["policy"] not in rules:
        raise UnknownTurn(f"turn {turn_id} is of policy {turn['policy']!r}, which the configuration does not have")
    settings, rewards = rules[turn["policy"]]
    settings = settings.model_copy(update={"history_seconds": _EVER})
    tables = _neighbourhood(lake, turn)
    with joined(tables, turn["policy"], settings, rewards, Cut(now, watermark), ()) as join:
        mine = {"turn_id": turn_id, "sample": sample}
        placed = join.execute(
            "SELECT state, revision, reward FROM attributed WHERE turn_id = $turn_id AND sample = $sample", mine
        ).fetchone()
        rows = join.execute(
            "SELECT feedback_id, kind, source, target, value, received_at, status, CAST(contribution AS DOUBLE),"
            " CASE WHEN status = 'counted' THEN CAST(contribution AS DOUBLE) ELSE 0.0 END"
            " FROM signal WHERE turn_id = $turn_id AND sample = $sample ORDER BY received_at, feedback_id, status",
            mine,
        ).fetchall()
    if placed is None:
        raise UnknownTurn(f"turn {turn_id} ended after the time that was asked about")
    state, revision, reward = placed
    signals = tuple(Contribution(**dict(zip(Contribution.__struct_fields__, row, strict=True))) for row in rows)
    dataset_id, weight = _row(datasets, turn) or (None, None)
    return Explanation(
        turn_id=turn_id,
        sample=sample,
        policy=turn["policy"],
        state=state,
        revision=revision,
        total=None if reward is None else round(sum(signal.contribution for signal in signals), 6),
        limit=rewards.limit,
        reward=reward,
        dataset_id=dataset_id,
        weight=weight,
        signals=signals,
    )


def _turn(lake: LakePlace, turn_id: str, sample: int) -> dict[str, Any]:
    columns = ["turn_id", "sample", "policy", "session_id", "answer_hash", "finished_at"]
    samples = read(lake, TURNS).to_table(columns=columns, filter=pc.field("turn_id") == turn_id).to_pylist()
    if not samples:
        raise UnknownTurn(
            f"there is no turn {turn_id} in the lake: `everloop trace {turn_id}` says whether it was erased"
        )
    for row in samples:
        if row["sample"] == sample:
            return row
    raise UnknownTurn(f"turn {turn_id} has no sample {sample}; it has {len(samples)}, from 0 on")


def _neighbourhood(lake: LakePlace, turn: dict[str, Any]) -> dict[str, pa.Table | pa.dataset.Dataset]:
    """The lake, as far as it has a part in what the join says of the turn."""
    near = pc.field("session_id") == turn["session_id"]
    if turn["answer_hash"] is not None:  # what goes on from it, and what that might go on from instead
        near |= (pc.field("parent_hash") == turn["answer_hash"]) | (pc.field("answer_hash") == turn["answer_hash"])
    turns = read(lake, TURNS).to_table(columns=list(TURN_COLUMNS), filter=near)
    feedback = read(lake, FEEDBACK)
    named = pa.array({*turns["turn_id"].to_pylist(), turn["session_id"]}, pa.string())
    ids = feedback.to_table(columns=["feedback_id"], filter=pc.field("target_id").isin(named))["feedback_id"]
    # With all that came under their idempotency keys, of whatever it speaks.
    about = feedback.to_table(filter=pc.field("feedback_id").isin(ids.unique()))
    return {TURNS: turns, FEEDBACK: about, ERASURES: read(lake, ERASURES)}


def _row(datasets: Path, turn: dict[str, Any]) -> tuple[str, float] | None:
    """The accepted dataset that has the turn, and its weight there."""
    same = (pc.field("turn_id") == turn["turn_id"]) & (pc.field("sample") == turn["sample"])
    for dataset_id in accepted_ids(datasets, turn["policy"], turn["finished_at"]):
        folder = datasets / turn["policy"] / dataset_id
        rows = folder / read_manifest(folder, DatasetManifest).rows.path  # an erasure's successor has another file
        for weight in pq.read_table(rows, columns=["weight"], filters=same)["weight"].to_pylist():
            return dataset_id, weight
    return None
