"""Dataset: an immutable Parquet file with the manifest that says where every row came from.

`datasets/<policy>/<dataset_id>/rows.parquet`, one row a (turn, feedback revision), columns as in
`ingest.datasets`; `candidate.json` before the gate, `manifest.json` after it passed.
"""

import msgspec

from ingest.contracts.files import FileEntry
from ingest.contracts.versions import version


class Baseline(msgspec.Struct, frozen=True):
    """Mean reward and effective number of rewards of a segment, from turns before the dataset's cut."""

    mean: float
    count: float


class GateCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """One expectation of the gate: whether it held, what was seen, and the offending rows (turn ids)."""

    name: str
    passed: bool
    observed: str
    rows: tuple[str, ...] = ()


class Succession(msgspec.Struct, frozen=True):
    """What an erasure took out of a dataset, by counts and digests only: how many rows, and the digest of the rows file
    that was before. `at`: Unix seconds."""

    erasure_id: str
    rows: int
    before_sha256: str
    at: float


class DatasetManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a dataset and why. `pairs` are (turn_id, sample, feedback revision)."""

    schema: int = version(2)
    """1: without `watermark`, `attribution`, `max_turns`, `subtracted` and `reader`; it cannot be frozen again."""
    dataset_id: str
    policy: str
    created_at: float
    cut_at: float
    """Rewards and baselines know nothing received after this time."""
    watermark: float | None = None
    """The log was complete up to this time."""
    lake_versions: dict[str, int]
    log_ranges: dict[str, tuple[int, int]]
    """Spool id → first and last sequence of its turns in this dataset."""
    pairs: tuple[tuple[str, int, int], ...]
    counts: dict[str, int]
    """Turns of the policy by state, at the cut."""
    versions: tuple[str, ...] = ()
    """Weight versions of the policy by their last use before the cut, newest first."""
    attribution: dict = {}
    """The settings of the join, `AttributionSettings`."""
    max_turns: int = 0
    subtracted: tuple[str, ...] = ()
    """Ids of the accepted datasets of the policy whose turns could not enter this one."""
    reader: dict[str, str] = {}
    """What made the rows: digest of the code of `ingest`, and the versions of the libraries that shape the bytes."""
    reward_specification: dict
    reward_digest: str
    baselines: dict[str, Baseline]
    gate: tuple[GateCheck, ...] = ()
    rows: FileEntry
    statistics: dict[str, float]
    """reward_mean, accept_rate, response_rate, tokens, mean_output_tokens, `language.<code>` (share), …"""
    erased: tuple[Succession, ...] = ()
    """Erasures since it was frozen, the oldest first. With any, this is the successor of what was frozen: `pairs`,
    `rows` and `statistics` are of what is left, and it cannot be frozen again."""
