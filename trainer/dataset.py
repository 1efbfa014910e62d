"""Reads a frozen dataset: rows exactly as its manifest describes them, checked by digest before use."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import read_manifest, verify_files
from trainer.errors import TrainerError

COLUMNS = ["turn_id", "segment", "prompt_ids", "output_ids", "logprobs", "weight_versions", "reward", "weight",
           "finished_at"]  # fmt: skip


@dataclass(frozen=True)
class Span:
    """Output tokens `start` to `end` (exclusive) were sampled by weights `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True)
class Row:
    """One turn with its reward. `logprobs` are those the engine logged, natural log, one an output token."""

    turn_id: str
    segment: str
    prompt_ids: np.ndarray
    output_ids: np.ndarray
    logprobs: np.ndarray
    spans: tuple[Span, ...]
    reward: float
    weight: float
    finished_at: float


def read_dataset(folder: Path) -> tuple[DatasetManifest, list[Row]]:
    """The dataset's manifest and rows, in the file's order. Raises `TrainerError` where it is incomplete,
    damaged, or has a row whose parts do not fit together."""
    try:
        manifest = read_manifest(folder, DatasetManifest)
        verify_files(folder, (manifest.rows,))
    except ContractError as error:
        raise TrainerError(f"dataset cannot be used: {error}") from error
    table = pq.read_table(folder / manifest.rows.path, columns=COLUMNS)
    return manifest, [_row(record) for record in table.to_pylist()]


def _row(record: dict) -> Row:
    row = Row(
        turn_id=record["turn_id"],
        segment=record["segment"],
        prompt_ids=np.asarray(record["prompt_ids"], dtype=np.int64),
        output_ids=np.asarray(record["output_ids"], dtype=np.int64),
        logprobs=np.asarray(record["logprobs"], dtype=np.float32),
        spans=tuple(Span(s["version"], s["start"], s["end"]) for s in record["weight_versions"]),
        reward=record["reward"],
        weight=record["weight"],
        finished_at=record["finished_at"],
    )
    bounds = [0, *(span.end for span in row.spans)]
    if (
        not len(row.prompt_ids)
        or not len(row.output_ids) == len(row.logprobs) == bounds[-1] > 0
        or [span.start for span in row.spans] != bounds[:-1]
    ):
        raise TrainerError(f"turn {row.turn_id} is not one: ids, logprobs and version spans do not fit together")
    return row
