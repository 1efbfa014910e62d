"""Rewards: which number each signal is, and why a turn got the one it has.

The specification (`RewardSettings`) is applied in the attribution join; this module names it (its digest is in
every manifest), and `ingest.explain` tells what became of each signal. A turn's reward is the sum of its counted
signals, clipped to ± `limit`:

- accept, reject, abstain: their number. With the defaults the break-even probability of acceptance is 0.25:
  below it the model does better to abstain;
- score, outcome: value × scale;
- edit: from `reject` (nothing kept) to `accept` (all kept), in proportion;
- comment: none;
- an implicit signal: its rule's number, where it has one (`ingest.implicit`).

Silence is missing data: a turn without a counted signal has no reward at all, and enters no dataset. A reward
for silence, of whatever size, would teach the model to cause it or to avoid it.
"""

from ingest.config import RewardSettings
from ingest.contracts.files import digest_of


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
