"""Datasets: what a trainer reads, where they stand, and which turns they used up.

`datasets/<policy>/<dataset_id>/` holds `rows.parquet` (one row a (turn, sample, feedback revision), columns `ROWS`,
ordered by end of turn, id, sample), `candidate.json` once frozen (`ingest.freeze`), `manifest.json` once its gate let
it pass (`ingest.gate`).

Invariant: a folder without `manifest.json` is no dataset; it holds nothing that a later one may not use.
"""

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest

CANDIDATE = "candidate.json"
MANIFEST = "manifest.json"
ROWS_FILE = "rows.parquet"

ROWS = pa.schema(
    [
        ("turn_id", pa.string()),
        ("sample", pa.int32()),
        ("feedback_revision", pa.int32()),
        ("policy", pa.string()),
        ("key_id", pa.string()),
        ("subject", pa.string()),
        ("session_id", pa.string()),
        ("segment", pa.string()),
        ("dialect", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        (
            "weight_versions",
            pa.list_(pa.struct([("version", pa.string()), ("start", pa.int32()), ("end", pa.int32())])),
        ),
        ("sampling", pa.string()),
        ("finish", pa.string()),
        ("language", pa.string()),
        ("reward", pa.float64()),
        ("weight", pa.float64()),
        ("started_at", pa.float64()),
        ("finished_at", pa.float64()),
    ]
)


class _Cut(msgspec.Struct):
    """The part of a manifest that says how new its turns may be."""

    cut_at: float


class _Pairs(msgspec.Struct):
    """The part of a manifest that says what was used."""

    pairs: tuple[tuple[str, int, int], ...]


def newest_dataset(datasets: Path, policy: str) -> DatasetManifest | None:
    """The manifest of the policy's accepted dataset with the newest cut."""
    found = sorted((datasets / policy).glob(f"*/{MANIFEST}"), key=lambda path: (_cut_at(path), path.parent.name))
    return read_manifest(found[-1].parent, DatasetManifest) if found else None


def accepted_ids(datasets: Path, policy: str, since: float = -math.inf) -> tuple[str, ...]:
    """Ids of the policy's accepted datasets that may hold a turn that ended after `since`, in the order of their names.

    A manifest is read for its cut once a process: a policy gets thousands of datasets, and is looked at every few
    seconds."""
    found = (datasets / policy).glob(f"*/{MANIFEST}")
    return tuple(sorted(path.parent.name for path in found if _cut_at(path) >= since))


@cache
def _cut_at(manifest: Path) -> float:
    return read_manifest(manifest.parent, _Cut).cut_at


def pairs_of(datasets: Path, policy: str, dataset_ids: Iterable[str]) -> set[tuple[str, int]]:
    """(turn id, sample) in these accepted datasets of the policy; raises `ContractError` where one is not there."""
    folders = (datasets / policy / dataset_id for dataset_id in dataset_ids)
    return {(turn, sample) for folder in folders for turn, sample, _ in read_manifest(folder, _Pairs).pairs}


def used_turns(datasets: Path, policy: str, since: float = -math.inf) -> set[tuple[str, int]]:
    """(turn id, sample) in every accepted dataset of the policy that may hold a turn that ended after `since`."""
    return pairs_of(datasets, policy, accepted_ids(datasets, policy, since))
