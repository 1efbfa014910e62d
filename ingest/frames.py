"""What the gate looks at: a frame with a row a row of the candidate, a turn of the lake, a signal about one.

Frames hold ids and numbers only: no token, no text, no subject reaches Data Docs. Every one has `turn_id` and `sample`,
by which rows are named. A value that cannot be computed is null.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.config import LakePlace
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import verify_files
from ingest.datasets import ROWS
from ingest.lake import FEEDBACK, TURNS, read

if TYPE_CHECKING:
    import pandas as pd

CANDIDATE_COLUMNS = (
    *("turn_id", "sample", "feedback_revision", "policy", "key_id", "finish", "reward", "weight", "language"),
    *("prompt_tokens", "output_tokens", "logprob_tokens", "lowest_logprob", "highest_logprob", "spans_tile"),
    *("version_age", "age_seconds", "subject_share", "key_share", "accepted", "uses_elsewhere", "language_drift"),
)
TURNS_COLUMNS = (
    *("turn_id", "sample", "key_id", "engine_id", "arm", "finish", "trainable", "failed", "output_tokens"),
    *("logprob_tokens", "seconds", "age_seconds"),
)
FEEDBACK_COLUMNS = (
    *(
        "turn_id",
        "sample",
        "turn_key",
        "kind",
        "key_id",
        "value",
        "valued",
        "own",
        "sender_share",
        "seconds_after",
        "age_seconds",
    ),
)
COLUMNS = {"candidate": CANDIDATE_COLUMNS, TURNS: TURNS_COLUMNS, FEEDBACK: FEEDBACK_COLUMNS}
"""Table → the columns of its frame, which expectations may name."""

_READ = {
    TURNS: [
        *("turn_id", "sample", "policy", "key_id", "session_id", "engine_id", "arm", "finish", "trainable"),
        *("output_tokens", "logprobs", "started_at", "finished_at"),
    ],
    FEEDBACK: ["target", "target_id", "sample", "kind", "key_id", "value", "received_at"],
}
NEWEST = 50_000
"""Turns, and signals, of the lake that are looked at; the frame of a candidate has all its rows."""
FEW = 10
"""Answers of a known language below which shares of languages tell nothing."""


class WrongColumns(Exception):
    """The candidate's file does not have the columns of a dataset."""


class Frames(NamedTuple):
    """The three frames. `keys`: of so many API keys turns were judged."""

    candidate: "pd.DataFrame"
    turns: "pd.DataFrame"
    feedback: "pd.DataFrame"
    keys: int


def frames(
    folder: Path,
    candidate: DatasetManifest,
    lake: LakePlace,
    used: set[tuple[str, int]],
    last: DatasetManifest | None,
    since: float,
) -> Frames:
    """The frames of a candidate in `folder`, and of what the lake has from `since` to its cut.

    `used` are (turn id, sample) of the policy's other accepted datasets, `last` is the newest of these. Raises
    `WrongColumns`, and `ContractError` where the file is not the one that the manifest names.
    """
    turns, feedback = _lake(lake, candidate, since)
    rows = _candidate(folder, candidate, used, last)
    judged = {*rows["key_id"], *feedback.loc[feedback["own"] == 1, "turn_key"]}
    return Frames(rows, turns, feedback, len(judged))


def _lake(lake: LakePlace, candidate: DatasetManifest, since: float) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """The newest turns of the policy, and what was said of them."""
    import duckdb

    trusted = pa.table({"key_id": pa.array(candidate.attribution.get("trusted_keys", ()), pa.string())})
    values = {"policy": candidate.policy, "cut": candidate.cut_at, "newest": NEWEST}
    with duckdb.connect() as connection:
        # DuckDB's own scan knows no range of doubles, and would read the whole lake.
        for table, time in ((TURNS, "finished_at"), (FEEDBACK, "received_at")):
            young = (pc.field(time) >= since) & (pc.field(time) <= candidate.cut_at)
            scanner = read(lake, table).scanner(columns=_READ[table], filter=young, batch_readahead=2)
            connection.register(f"lake_{table}", scanner.to_reader())
        connection.register("trusted", trusted)
        connection.execute(
            """
            CREATE TEMP TABLE turn AS SELECT
                turn_id, sample, key_id, engine_id, arm, finish, CAST(trainable AS INTEGER) AS trainable,
                CASE WHEN finish IN ('error', 'engine_lost') THEN 1.0 ELSE 0.0 END AS failed, output_tokens,
                octet_length(logprobs) // 4 AS logprob_tokens, finished_at - started_at AS seconds,
                $cut - finished_at AS age_seconds, session_id, finished_at
            FROM lake_turns WHERE policy = $policy
            ORDER BY finished_at DESC, turn_id DESC, sample DESC LIMIT $newest
            """,
            values,
        )
        turns = connection.execute("SELECT * EXCLUDE (session_id, finished_at) FROM turn").df()
        feedback = connection.execute(
            """
            WITH said AS MATERIALIZED (SELECT * FROM lake_feedback),
            aimed AS (
                SELECT f.*, t.turn_id, t.key_id AS maker, t.finished_at
                FROM said f JOIN turn t ON f.target_id = t.turn_id AND f.sample = t.sample
                WHERE f.target IN ('turn', 'session_of_turn')
                UNION ALL
                SELECT f.*, t.turn_id, t.key_id AS maker, t.finished_at
                FROM said f JOIN (
                    SELECT session_id, max(turn_id) AS turn_id, max(key_id) AS key_id, max(finished_at) AS finished_at
                    FROM turn GROUP BY session_id
                ) t ON f.target_id = t.session_id
                WHERE f.target = 'session'
            )
            SELECT
                turn_id, sample, maker AS turn_key, kind, key_id, value,
                CASE WHEN kind NOT IN ('score', 'outcome') OR isfinite(value) THEN 1 ELSE 0 END AS valued,
                CASE WHEN key_id = maker OR key_id IN (SELECT t.key_id FROM trusted t) THEN 1.0 ELSE 0.0 END AS own,
                CASE WHEN key_id IN (SELECT t.key_id FROM trusted t) THEN 0.0
                    ELSE count(*) OVER (PARTITION BY key_id) / count(*) OVER () END AS sender_share,
                received_at - finished_at AS seconds_after, $cut - received_at AS age_seconds
            FROM aimed
            ORDER BY received_at DESC, turn_id, sample LIMIT $newest
            """,
            {"cut": candidate.cut_at, "newest": NEWEST},
        ).df()
    return turns, feedback


def _candidate(
    folder: Path, candidate: DatasetManifest, used: set[tuple[str, int]], last: DatasetManifest | None
) -> "pd.DataFrame":
    """A row for each row of the dataset; arrays are read in batches, for their lengths and bounds."""
    import pandas as pd

    verify_files(folder, (candidate.rows,))
    named: list[pa.RecordBatch] = []
    parts = [pd.DataFrame(_arrays(pa.RecordBatch.from_pylist([], schema=ROWS), candidate))]
    with pq.ParquetFile(folder / candidate.rows.path) as file:
        _same_columns(file.schema_arrow, candidate)
        names = ["turn_id", "sample", "feedback_revision", "policy", "key_id", "subject", "finish", "reward", "weight"]
        for batch in file.iter_batches(batch_size=2048):
            named.append(batch.select([*names, "language"]))
            parts.append(pd.DataFrame(_arrays(batch, candidate)))
    rows = pa.Table.from_batches(named, pa.schema([ROWS.field(name) for name in [*names, "language"]]))
    data = rows.drop_columns(["subject"]).to_pandas()
    data = data.join(pd.concat(parts, ignore_index=True))
    data["subject_share"] = _shares(rows["subject"])
    data["key_share"] = _shares(rows["key_id"])
    data["accepted"] = (data["reward"] > 0).astype(float)
    data["uses_elsewhere"] = [
        int(pair in used) for pair in zip(data["turn_id"].tolist(), data["sample"].tolist(), strict=True)
    ]
    data["language_drift"] = _language_drift(data["language"], last)
    return data[list(CANDIDATE_COLUMNS)]


def _arrays(batch: pa.RecordBatch, candidate: DatasetManifest) -> dict[str, np.ndarray]:
    """What the arrays of each row come to."""
    tokens = {name: _lengths(batch[f"{name}_ids"]) for name in ("prompt", "output")}
    counts = _lengths(batch["logprobs"])
    logprobs = pc.list_flatten(batch["logprobs"]).to_numpy(zero_copy_only=False).astype(np.float64)
    return {
        "prompt_tokens": tokens["prompt"],
        "output_tokens": tokens["output"],
        "logprob_tokens": counts,
        "lowest_logprob": _by_row(np.minimum, logprobs, counts, empty=0.0),
        "highest_logprob": _by_row(np.maximum, logprobs, counts, empty=0.0),
        "spans_tile": _spans_tile(batch["weight_versions"], tokens["output"]),
        "version_age": _version_age(batch["weight_versions"], candidate.versions),
        "age_seconds": candidate.cut_at - batch["started_at"].to_numpy(zero_copy_only=False),
    }


def _same_columns(schema: pa.Schema, candidate: DatasetManifest) -> None:
    missing = [name for name in ROWS.names if name not in schema.names]
    changed = [f.name for f in ROWS if f.name not in missing and schema.field(f.name).type != f.type]
    for names, what in ((missing, "has no column"), (changed, "has another type in column")):
        if names:
            raise WrongColumns(f"{candidate.rows.path} {what} {', '.join(names)}; freeze again")


def _language_drift(languages: "pd.Series", last: DatasetManifest | None) -> np.ndarray:
    """Of each row in a language whose share grew since the last dataset: by how much all such shares grew together.

    That is the total variation distance of the two, 0 to 1. 0 for the other rows, and where too few are known."""
    drift = np.zeros(len(languages))
    before = last.statistics if last is not None else {}
    known = languages.dropna()
    if min(before.get("language_known", 0), len(known)) < FEW:
        return drift
    grown = {
        code: share - before.get(f"language.{code}", 0.0)
        for code, share in known.value_counts(normalize=True).items()
        if share > before.get(f"language.{code}", 0.0)
    }
    drift[languages.isin(list(grown)).to_numpy()] = min(1.0, sum(grown.values()))
    return drift


def _lengths(lists: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)


def _by_row(function: "np.ufunc", values: np.ndarray, lengths: np.ndarray, empty: float) -> np.ndarray:
    """`function` reduced over each row's `lengths[row]` consecutive values; NaN where one of them is."""
    out = np.full(len(lengths), empty)
    filled = lengths > 0
    if filled.any():
        starts = np.cumsum(lengths) - lengths
        out[filled] = function.reduceat(values, starts[filled])
    return out


def _spans_tile(spans: pa.Array, tokens: np.ndarray) -> np.ndarray:
    """Whether each row's spans cover its tokens from the first to the last, without gap or overlap."""
    counts = _lengths(spans)
    flat = pc.list_flatten(spans)
    start, end = (
        pc.struct_field(flat, name).to_numpy(zero_copy_only=False).astype(np.int64) for name in ("start", "end")
    )
    first = np.zeros(len(start), bool)
    first[(np.cumsum(counts) - counts)[counts > 0]] = True
    expected = np.where(first, 0, np.concatenate(([0], end[:-1]))) if len(end) else end
    broken = _by_row(np.maximum, ((start != expected) | (end <= start)).astype(float), counts, empty=0.0)
    covered = _by_row(np.maximum, end.astype(float), counts, empty=0.0)
    return (broken == 0) & (covered == tokens)


def _version_age(spans: pa.Array, versions: tuple[str, ...]) -> np.ndarray:
    """How many newer versions answered users, for each row's oldest span; NaN where one is unknown."""
    named = pc.struct_field(pc.list_flatten(spans), "version")
    ages = pc.index_in(named, value_set=pa.array(versions, pa.string())).to_numpy(zero_copy_only=False)
    return _by_row(np.maximum, ages.astype(np.float64), _lengths(spans), empty=0.0)


def _shares(names: pa.ChunkedArray) -> np.ndarray:
    """Of each row, the share of rows with its name; 0 for rows without one."""
    encoded = names.combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    if not len(codes):
        return np.zeros(0)
    shares = np.bincount(codes)[codes] / len(codes)
    return np.where(pc.equal(names, "").to_numpy(), 0.0, shares)
