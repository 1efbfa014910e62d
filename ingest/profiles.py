"""What people look at in a dataset: how it is spread, its rows, and what sets two of them apart.

Columns of arrays are read a row group at a time, for their lengths.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, verify_files
from ingest.datasets import CANDIDATE, MANIFEST

BINS = 12


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How often each value, or range of values, occurs. `unit` is what is counted."""

    name: str
    unit: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row, without its arrays."""

    turn_id: str
    sample: int
    feedback_revision: int
    reward: float
    weight: float
    prompt_tokens: int
    output_tokens: int
    versions: tuple[str, ...]
    """Of its output tokens, in their order."""
    finish: str
    language: str | None
    key_id: str
    segment: str
    finished_at: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What sets two datasets apart. Rows are (turn id, sample); `revised` are in both, with other feedback."""

    only_first: tuple[tuple[str, int], ...]
    only_second: tuple[tuple[str, int], ...]
    both: int
    revised: tuple[tuple[str, int], ...]
    statistics: dict[str, tuple[float | None, float | None]]
    made: dict[str, tuple[object, object]]
    """Of what made them, the parts that differ."""


def open_dataset(folder: Path) -> DatasetManifest:
    """The manifest of a dataset, or of a candidate. Raises `ContractError`."""
    return read_manifest(folder, DatasetManifest, MANIFEST if (folder / MANIFEST).exists() else CANDIDATE)


def histograms(folder: Path, manifest: DatasetManifest) -> tuple[Histogram, ...]:
    """Rewards, lengths and weight versions of the rows, and the states of the policy's turns at the cut."""
    rewards, prompts, outputs = [], [], []
    versions: Counter[str] = Counter()
    for batch in _batches(folder, manifest, ("reward", "prompt_ids", "output_ids", "weight_versions")):
        rewards.append(batch["reward"].to_numpy(zero_copy_only=False))
        prompts.append(_lengths(batch["prompt_ids"]))
        outputs.append(_lengths(batch["output_ids"]))
        for span in batch["weight_versions"].flatten().to_pylist():
            versions[span["version"]] += span["end"] - span["start"]
    return (
        _spread("reward", rewards),
        _spread("prompt tokens", prompts),
        _spread("output tokens", outputs),
        _counted("version", "output tokens", versions, manifest.versions),
        _counted("state", "turns", Counter(manifest.counts), tuple(manifest.counts)),
    )


def rows(folder: Path, manifest: DatasetManifest, turn_id: str | None, limit: int) -> list[Row]:
    """The first `limit` rows, all of them or those of one turn, in their order."""
    found: list[Row] = []
    columns = [name for name in Row.__struct_fields__ if not name.endswith(("_tokens", "versions"))]
    for batch in _batches(folder, manifest, (*columns, "prompt_ids", "output_ids", "weight_versions")):
        if turn_id is not None:
            batch = batch.filter(pc.equal(batch["turn_id"], turn_id))
        batch = batch.slice(0, limit - len(found))
        tokens = zip(_lengths(batch["prompt_ids"]).tolist(), _lengths(batch["output_ids"]).tolist(), strict=True)
        spans = batch["weight_versions"].to_pylist()
        for row, (prompt, output), parts in zip(batch.select(columns).to_pylist(), tokens, spans, strict=True):
            seen = tuple(dict.fromkeys(span["version"] for span in parts))
            found.append(Row(**row, prompt_tokens=prompt, output_tokens=output, versions=seen))
        if len(found) >= limit:
            break
    return found


def compare(first: DatasetManifest, second: DatasetManifest) -> Difference:
    """What sets two datasets apart, by their manifests."""
    one, other = ({(turn, sample): revision for turn, sample, revision in m.pairs} for m in (first, second))
    names = dict.fromkeys([*first.statistics, *second.statistics])
    parts = (
        "policy",
        "cut_at",
        "lake_versions",
        "attribution",
        "max_turns",
        "reward_specification",
        "subtracted",
        "reader",
    )
    made = {name: (getattr(first, name), getattr(second, name)) for name in parts}
    return Difference(
        only_first=tuple(pair for pair in one if pair not in other),
        only_second=tuple(pair for pair in other if pair not in one),
        both=len(one.keys() & other.keys()),
        revised=tuple(pair for pair, revision in one.items() if other.get(pair, revision) != revision),
        statistics={name: (first.statistics.get(name), second.statistics.get(name)) for name in names},
        made={name: pair for name, pair in made.items() if pair[0] != pair[1]},
    )


def _batches(folder: Path, manifest: DatasetManifest, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    verify_files(folder, (manifest.rows,))
    with pq.ParquetFile(folder / manifest.rows.path) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=1024, columns=present):
            for name in columns:
                if name not in present:  # frozen before there was such a column
                    batch = batch.append_column(name, pa.nulls(batch.num_rows))
            yield batch


def _lengths(lists: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)


def _spread(name: str, parts: list[np.ndarray]) -> Histogram:
    """Numbers by value where there are few, otherwise by equal ranges."""
    values = np.concatenate(parts) if parts else np.zeros(0)
    values = values[~np.isnan(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= BINS:
        return Histogram(
            name=name, unit="rows", labels=tuple(f"{v:g}" for v in distinct), counts=tuple(counts.tolist())
        )
    counts, edges = np.histogram(values, bins=BINS)
    digits = 0 if edges[-1] - edges[0] > BINS else 2
    labels = tuple(f"{low:.{digits}f} – {high:.{digits}f}" for low, high in pairwise(edges))
    return Histogram(name=name, unit="rows", labels=labels, counts=tuple(counts.tolist()))


def _counted(name: str, unit: str, counts: Counter[str], order: tuple[str, ...]) -> Histogram:
    labels = (*(label for label in order if label in counts), *sorted(set(counts) - set(order)))
    return Histogram(name=name, unit=unit, labels=labels, counts=tuple(counts[label] for label in labels))
