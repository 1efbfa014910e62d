"""Rewards: which number each signal is, and why a turn got the one it has.

The specification (`RewardSettings`) is applied in the attribution join; this module names it (its digest is in
every manifest) and explains it. A turn's reward is the sum of its counted signals, clipped to ± `limit`:

- accept, reject, abstain: their number. With the defaults the break-even probability of acceptance is 0.25:
  below it the model does better to abstain;
- score, outcome: value × scale;
- edit: from `reject` (nothing kept) to `accept` (all kept), in proportion;
- comment: none;
- an implicit signal: its rule's number, where it has one (`ingest.implicit`).

Silence is missing data: a turn without a counted signal has no reward at all, and enters no dataset. A reward
for silence, of whatever size, would teach the model to cause it or to avoid it.
"""

from pathlib import Path

import msgspec

from ingest.config import AttributionSettings, RewardSettings
from ingest.contracts.files import digest_of


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one signal did to one turn's reward.

    `status`: `counted`; `revised` (a later one of the same source took its place), `duplicate` (sent twice),
    `conflicting` (with the idempotency key of another one, but not its content), `unauthorised` (the sender's key did
    not make the turn), `late` (after the window), `worthless` (no number: a comment, an edit of an answer that is not
    known, an implicit signal whose rule has none). `contribution` is 0 unless counted.
    """

    feedback_id: str
    kind: str
    source: str
    target: str
    value: float | None
    received_at: float
    status: str
    contribution: float


def specification(rewards: RewardSettings) -> dict:
    """The specification as it stands in a manifest; with the classifier's digest, where its word has a reward.

    Raises `ClassifierError`."""
    written = rewards.model_dump(mode="json")
    if rewards.implicit.dissatisfied is not None:
        from ingest.implicit import identify  # with DuckDB, see below

        written["implicit"]["classifier_digest"] = identify(rewards.implicit).digest
    return written


def specification_digest(rewards: RewardSettings) -> str:
    """SHA-256 of the specification: two datasets with the same one had the same numbers for the same signals."""
    return digest_of(specification(rewards))


def explain(
    lake: Path,
    policy: str,
    turn_id: str,
    sample: int = 0,
    *,
    settings: AttributionSettings,
    rewards: RewardSettings,
    now: float,
) -> list[Contribution]:
    """Every signal received by `now` that speaks of a turn, in the order of receipt; [] where none does."""
    # The join loads DuckDB, and rewards are also read by what only wants their digest.
    from ingest.attribution import Cut, attributed

    with attributed(lake, policy, settings, rewards, Cut(now, now), used=()) as join:
        rows = join.execute(
            "SELECT feedback_id, kind, source, target, value, received_at, status,"
            " CASE WHEN status = 'counted' THEN CAST(contribution AS DOUBLE) ELSE 0.0 END"
            " FROM signal WHERE turn_id = $turn_id AND sample = $sample ORDER BY received_at, feedback_id, status",
            {"turn_id": turn_id, "sample": sample},
        ).fetchall()
    return [Contribution(**dict(zip(Contribution.__struct_fields__, row, strict=True))) for row in rows]
