"""Datasets: what a trainer reads, how it is frozen, and which turns were used up.

`datasets/<policy>/<dataset_id>/` holds `rows.parquet` (one row a (turn, sample, feedback revision), columns `ROWS`,
ordered by end of turn, id, sample), `candidate.json` once frozen, `manifest.json` once its gate let it pass. Rows are
the newest ready turns of the policy; the same lake versions, cut, settings and accepted datasets give the same bytes.

Invariant: a folder without `manifest.json` is no dataset; it holds nothing that a later one may not use.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.baselines import segment_baselines
from ingest.config import AttributionSettings, DatasetSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, read_manifest, verify_files, write_manifest
from ingest.rewards import specification, specification_digest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

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
        ("reward", pa.float64()),
        ("weight", pa.float64()),
        ("started_at", pa.float64()),
        ("finished_at", pa.float64()),
    ]
)


class DatasetError(ValueError):
    """Turns of the lake that cannot become rows: says which."""


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was frozen. `passed`: its gate had let it pass before, and nothing was done now."""

    policy: str
    dataset_id: str
    rows: int
    counts: dict[str, int]
    statistics: dict[str, float]
    passed: bool


class _Pairs(msgspec.Struct):
    """The part of a manifest that says what was used."""

    pairs: tuple[tuple[str, int, int], ...]


def read_rows(dataset: Path, manifest: str = MANIFEST) -> pa.Table:
    """The rows of a dataset's folder, columns `ROWS`, in their order.

    Raises `ContractError` where its gate never passed, or where the file is not the one that the manifest names."""
    entry = read_manifest(dataset, DatasetManifest, manifest).rows
    verify_files(dataset, (entry,))
    return pq.read_table(dataset / entry.path)


def list_datasets(datasets: Path, policy: str) -> list[DatasetManifest]:
    """Manifests of the policy's accepted datasets, oldest cut first."""
    folders = [path.parent for path in (datasets / policy).glob(f"*/{MANIFEST}")]
    return sorted((read_manifest(f, DatasetManifest) for f in folders), key=lambda m: (m.cut_at, m.dataset_id))


def used_turns(datasets: Path, policy: str, besides: str = "") -> set[tuple[str, int]]:
    """(turn id, sample) in every accepted dataset of the policy, but the one named `besides`."""
    folders = [path.parent for path in (datasets / policy).glob(f"*/{MANIFEST}") if path.parent.name != besides]
    return {(turn, sample) for f in folders for turn, sample, _ in read_manifest(f, _Pairs).pairs}


def freeze(
    *,
    lake: Path,
    datasets: Path,
    policy: str,
    dataset_id: str,
    settings: DatasetSettings,
    attribution: AttributionSettings,
    rewards: RewardSettings,
    now: float,
    watermark: float,
) -> CandidateReport:
    """Write `rows.parquet` and `candidate.json` of a new dataset, cut at `now`; one that is there already stays.

    Zero ready turns make an empty candidate, which its gate then stops. Raises `DatasetError` where a turn's arrays
    are torn.
    """
    # DuckDB and Delta are for freezing only: the trainer reads rows without them.
    from ingest.attribution import Cut, attributed, lake_versions

    folder = datasets / policy / dataset_id
    for name in (MANIFEST, CANDIDATE):
        if (folder / name).exists():
            return _report(read_manifest(folder, DatasetManifest, name), passed=name == MANIFEST)

    cut = Cut(now, watermark, lake_versions(lake))
    with attributed(lake, policy, attribution, rewards, cut, used_turns(datasets, policy)) as join:
        join.execute(
            "CREATE TEMP TABLE chosen AS SELECT * FROM attributed WHERE ready"
            " ORDER BY finished_at DESC, turn_id DESC, sample DESC LIMIT $max_turns",
            {"max_turns": settings.max_turns},
        )
        rows = _rows(join, policy)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / ROWS_FILE, compression="zstd", row_group_size=8192)
        manifest = _candidate(join, rows, folder, policy, dataset_id, cut.lake_versions, rewards, now)
    write_manifest(folder, manifest, CANDIDATE)
    return _report(manifest, passed=False)


def _rows(join: "DuckDBPyConnection", policy: str) -> pa.Table:
    """The chosen turns as `ROWS`: packed arrays become lists without a copy a token."""
    table = join.sql(
        """
        SELECT
            t.turn_id, t.sample, c.revision AS feedback_revision, t.policy, t.key_id, t.subject, t.session_id,
            c.segment, t.dialect, t.prompt_ids, t.output_ids, t.logprobs, t.weight_versions, t.sampling, t.finish,
            c.reward, CAST(1.0 AS DOUBLE) AS weight, t.started_at, t.finished_at
        FROM lake_turns t JOIN chosen c ON t.turn_id = c.turn_id AND t.sample = c.sample
        WHERE t.policy = $policy AND t.finished_at >= (SELECT min(finished_at) FROM chosen)
        ORDER BY t.finished_at, t.turn_id, t.sample
        """,
        params={"policy": policy},
    ).to_arrow_table()
    for name in ("prompt_ids", "output_ids", "logprobs"):
        lists = _unpacked(table["turn_id"], table[name], name, ROWS.field(name).type)
        table = table.set_column(table.column_names.index(name), name, lists)
    return table.cast(ROWS).combine_chunks()


def _unpacked(turn_ids: pa.ChunkedArray, packed: pa.ChunkedArray, name: str, kind: pa.ListType) -> pa.Array:
    """Packed little-endian values of four bytes as a list array over the same memory."""
    blob = packed.combine_chunks().cast(pa.large_binary())
    _, positions, data = blob.buffers()
    at = np.frombuffer(positions, np.int64, len(blob) + 1, blob.offset * 8)
    torn = np.diff(at) % 4 != 0
    if torn.any():
        turns = ", ".join(turn_ids.filter(pa.array(torn)).to_pylist()[:10])
        raise DatasetError(f"{name} of these turns are no whole number of 4-byte values, the lake is damaged: {turns}")
    first, size = int(at[0]), int(at[-1] - at[0])
    values = pa.Array.from_buffers(kind.value_type, size // 4, [None, data.slice(first, size)])
    return pa.ListArray.from_arrays(pa.array((at - first) // 4, pa.int32()), values, type=kind)


def _candidate(
    join: "DuckDBPyConnection",
    rows: pa.Table,
    folder: Path,
    policy: str,
    dataset_id: str,
    versions: dict[str, int],
    rewards: RewardSettings,
    now: float,
) -> DatasetManifest:
    from ingest.attribution import state_counts

    ranges = join.execute(
        "SELECT spool_id, min(sequence), max(sequence) FROM chosen GROUP BY spool_id ORDER BY spool_id"
    )
    keys = zip(*(rows[name].to_pylist() for name in ("turn_id", "sample", "feedback_revision")), strict=True)
    path = folder / ROWS_FILE
    return DatasetManifest(
        dataset_id=dataset_id,
        policy=policy,
        created_at=now,
        cut_at=now,
        lake_versions=versions,
        log_ranges={spool: (first, last) for spool, first, last in ranges.fetchall()},
        pairs=tuple(keys),
        counts=state_counts(join),
        versions=tuple(v for (v,) in join.execute("SELECT version FROM version_age ORDER BY age").fetchall()),
        reward_specification=specification(rewards),
        reward_digest=specification_digest(rewards),
        baselines=segment_baselines(join),
        rows=FileEntry(ROWS_FILE, path.stat().st_size, digest_file(path)),
        statistics=_statistics(join, rows),
    )


def _statistics(join: "DuckDBPyConnection", rows: pa.Table) -> dict[str, float]:
    """Means of the rows, and the share of the policy's answered turns among those that users saw."""
    ((answered, seen),) = join.execute(
        "SELECT coalesce(sum(CASE WHEN revision > 0 THEN 1 ELSE 0 END), 0), count(*)"
        " FROM attributed WHERE state NOT IN ('censored', 'superseded')"
    ).fetchall()
    outputs = pc.list_value_length(rows["output_ids"])
    reward = rows["reward"].to_numpy()
    n = rows.num_rows
    return {
        "rows": float(n),
        "reward_mean": float(reward.mean()) if n else 0.0,
        "accept_rate": float((reward > 0).mean()) if n else 0.0,
        "response_rate": answered / seen if seen else 0.0,
        "tokens": float(pc.sum(outputs).as_py() or 0),
        "mean_output_tokens": float(pc.mean(outputs).as_py() or 0.0),
        "mean_prompt_tokens": float(pc.mean(pc.list_value_length(rows["prompt_ids"])).as_py() or 0.0),
    }


def _report(manifest: DatasetManifest, passed: bool) -> CandidateReport:
    return CandidateReport(
        policy=manifest.policy,
        dataset_id=manifest.dataset_id,
        rows=len(manifest.pairs),
        counts=manifest.counts,
        statistics=manifest.statistics,
        passed=passed,
    )
