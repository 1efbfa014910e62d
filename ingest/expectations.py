"""What a candidate dataset must be like, as a Great Expectations suite over a frame with one row a row.

The frame holds ids and numbers only: no token, no text, no subject reaches Data Docs. Each expectation has a name
(`meta["name"]`), which is the name of the gate's check.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations import Expectation

LOGPROB_ROUNDING = 1e-4
"""A sampled token's logprob is at most 0; float32 log-softmax may round this far above."""


def frame(rows: pa.Table, candidate: DatasetManifest, used: set[tuple[str, int]]) -> "pd.DataFrame":
    """A row for each row of the dataset: its ids, its reward, and what the expectations look at.

    `used` are (turn id, sample) of the policy's other accepted datasets. A value that cannot be computed (the lowest
    of logprobs that are no numbers, the age of an unknown version) is null.
    """
    data = rows.select(["turn_id", "sample", "feedback_revision", "policy", "reward", "weight"]).to_pandas()
    for name in ("prompt", "output"):
        data[f"{name}_tokens"] = _lengths(rows[f"{name}_ids"])
    data["logprob_tokens"] = _lengths(rows["logprobs"])
    logprobs = pc.list_flatten(rows["logprobs"]).to_numpy(zero_copy_only=False).astype(np.float64)
    data["lowest_logprob"] = _by_row(np.minimum, logprobs, data["logprob_tokens"].to_numpy(), empty=0.0)
    data["highest_logprob"] = _by_row(np.maximum, logprobs, data["logprob_tokens"].to_numpy(), empty=0.0)
    data["spans_tile"] = _spans_tile(rows["weight_versions"], data["output_tokens"].to_numpy())
    data["version_age"] = _version_age(rows["weight_versions"], candidate.versions)
    data["age_seconds"] = candidate.cut_at - rows["started_at"].to_numpy()
    data["subject_share"] = _shares(rows["subject"])
    data["key_share"] = _shares(rows["key_id"])
    data["accepted"] = (data["reward"] > 0).astype(float)
    data["uses_elsewhere"] = [
        int(pair in used) for pair in zip(data["turn_id"].tolist(), data["sample"].tolist(), strict=True)
    ]
    return data


def expectations(policy: str, settings: GateSettings, last: DatasetManifest | None) -> "Sequence[Expectation]":
    """The suite. `last` is the policy's last accepted dataset: without one, nothing can drift."""
    from great_expectations import expectations as gxe

    suite: list[Expectation] = [
        gxe.ExpectTableRowCountToBeBetween(min_value=settings.min_rows, meta=_named("enough rows")),
        gxe.ExpectColumnValuesToBeInSet(column="policy", value_set=[policy], meta=_named("one policy")),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["turn_id", "sample"], meta=_named("no turn twice")),
        gxe.ExpectColumnValuesToBeInSet(column="uses_elsewhere", value_set=[0], meta=_named("in no other dataset")),
        gxe.ExpectColumnValuesToBeBetween(column="prompt_tokens", min_value=1, meta=_named("a prompt")),
        gxe.ExpectColumnValuesToBeBetween(column="output_tokens", min_value=1, meta=_named("an answer")),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="output_tokens", column_B="logprob_tokens", meta=_named("a logprob for each token")
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="lowest_logprob", meta=_named("logprobs are numbers")),
        gxe.ExpectColumnValuesToBeBetween(
            column="lowest_logprob", min_value=settings.min_logprob, meta=_named("logprobs not too low")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="highest_logprob", max_value=LOGPROB_ROUNDING, meta=_named("logprobs not above 0")
        ),
        gxe.ExpectColumnValuesToBeInSet(column="spans_tile", value_set=[True], meta=_named("a version for each token")),
        gxe.ExpectColumnValuesToNotBeNull(column="version_age", meta=_named("known versions")),
        gxe.ExpectColumnValuesToBeBetween(
            column="version_age", max_value=settings.max_version_age, meta=_named("recent versions")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="age_seconds", min_value=0, max_value=settings.max_age_seconds, meta=_named("recent turns")
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="reward", meta=_named("a reward")),
        gxe.ExpectColumnValuesToBeBetween(column="weight", min_value=0, strict_min=True, meta=_named("a weight")),
        gxe.ExpectColumnUniqueValueCountToBeBetween(column="reward", min_value=2, meta=_named("rewards differ")),
        gxe.ExpectColumnValuesToBeBetween(
            column="subject_share", max_value=settings.max_subject_share, meta=_named("no subject dominates")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="key_share", max_value=settings.max_key_share, meta=_named("no key dominates")
        ),
    ]
    if last is not None:
        length, rate = last.statistics["mean_output_tokens"], last.statistics["accept_rate"]
        suite += [
            gxe.ExpectColumnMeanToBeBetween(
                column="output_tokens",
                min_value=length / settings.max_length_ratio,
                max_value=length * settings.max_length_ratio,
                meta=_named("length like the last dataset's"),
            ),
            gxe.ExpectColumnMeanToBeBetween(
                column="accepted",
                min_value=rate - settings.max_acceptance_change,
                max_value=rate + settings.max_acceptance_change,
                meta=_named("acceptance like the last dataset's"),
            ),
        ]
    return suite


def _named(name: str) -> dict[str, str]:
    return {"name": name}


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def _by_row(function: "np.ufunc", values: np.ndarray, lengths: np.ndarray, empty: float) -> np.ndarray:
    """`function` reduced over each row's `lengths[row]` consecutive values; NaN where one of them is."""
    out = np.full(len(lengths), empty)
    filled = lengths > 0
    if filled.any():
        starts = np.cumsum(lengths) - lengths
        out[filled] = function.reduceat(values, starts[filled])
    return out


def _spans_tile(spans: pa.ChunkedArray, tokens: np.ndarray) -> np.ndarray:
    """Whether each row's spans cover its tokens from the first to the last, without gap or overlap."""
    counts = _lengths(spans)
    flat = pc.list_flatten(spans)
    start, end = (pc.struct_field(flat, name).to_numpy().astype(np.int64) for name in ("start", "end"))
    first = np.zeros(len(start), bool)
    first[(np.cumsum(counts) - counts)[counts > 0]] = True
    expected = np.where(first, 0, np.concatenate(([0], end[:-1]))) if len(end) else end
    broken = _by_row(np.maximum, ((start != expected) | (end <= start)).astype(float), counts, empty=0.0)
    covered = _by_row(np.maximum, end.astype(float), counts, empty=0.0)
    return (broken == 0) & (covered == tokens)


def _version_age(spans: pa.ChunkedArray, versions: tuple[str, ...]) -> np.ndarray:
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
