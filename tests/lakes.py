"""Small lakes for tests: turns and feedback written as landing writes them."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from ingest.config import LakePlace
from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, verify_files
from ingest.contracts.turn import Turn
from ingest.datasets import MANIFEST
from ingest.derived import derive
from ingest.lake import SCHEMAS, open_table

_sequence = itertools.count(1)


def turn(turn_id: str, **changes: Any) -> dict[str, Any]:
    """A trainable turn of 3 tokens that ended at 100 s. `prompt`, `output`, `logprobs`: lists; `version`: one span."""
    output = changes.pop("output", [5, 6, 7])
    logprobs = changes.pop("logprobs", [-0.5] * len(output))
    version = changes.pop("version", "base")
    row = {
        "turn_id": turn_id,
        "sample": 0,
        "policy": "p",
        "dialect": "chat",
        "key_id": "k",
        "subject": f"subject of {turn_id}",
        "session_id": f"session of {turn_id}",
        "prefix_hashes": [],
        "prompt_ids": pack_ids(changes.pop("prompt", [1, 2])),
        "output_ids": pack_ids(output),
        "logprobs": pack_logprobs(logprobs),
        "weight_versions": [{"version": version, "start": 0, "end": len(output)}],
        "sampling": '{"temperature":1.0}',
        "finish": "stop",
        "arm": "champion",
        "started_at": changes.get("finished_at", 100.0) - 1.0,
        "finished_at": 100.0,
        "request": "{}",
        "answer": "",
        "trainable": True,
        "untrainable_reason": None,
        "spool_id": "s",
        "sequence": next(_sequence),
        "landed_at": 0.0,
    }
    return row | changes


def feedback(target_id: str, kind: str = "accept", **changes: Any) -> dict[str, Any]:
    """Feedback of the turn's own key, received at 110 s."""
    sequence = next(_sequence)
    row = {
        "feedback_id": f"f{sequence}",
        "target": "turn",
        "target_id": target_id,
        "sample": 0,
        "kind": kind,
        "value": None,
        "text": None,
        "source": "user",
        "key_id": "k",
        "subject": "",
        "occurred_at": changes.get("received_at", 110.0),
        "received_at": 110.0,
        "spool_id": "s",
        "sequence": sequence,
        "landed_at": 0.0,
    }
    return row | changes


def land(lake: LakePlace, table: str, *rows: dict[str, Any]) -> None:
    """Append rows to a table of the lake."""
    write_deltalake(open_table(lake, table), as_arrow(table, rows), mode="append")


def thrice_at_once(work: Callable[[], object]) -> None:
    """Three threads do the same; raises what any of them did."""
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result()


def as_arrow(table: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows of a table, with the columns that landing derives."""
    if table == "turns":
        rows = [row | derive(as_event(row))._asdict() for row in rows]
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[table])


def as_event(row: dict[str, Any]) -> Turn:
    """The event that the turn landed from, as far as a row of `turn` tells."""
    known = {name: row[name] for name in Turn.__struct_fields__ if name in row}
    return Turn(**known | {"sampling": {}, "weight_versions": (), "engine_id": ""})


def read_rows(dataset: Path, manifest: str = MANIFEST) -> pa.Table:
    """The rows of a dataset's folder, which are those that the manifest names."""
    entry = read_manifest(dataset, DatasetManifest, manifest).rows
    verify_files(dataset, (entry,))
    return pq.read_table(dataset / entry.path)


def mentions(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Files below `folder` that hold one of the words, Parquet as its rows, log entries too."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            parquet = path.name.endswith(".parquet")
            text = repr(pq.read_table(path).to_pylist()) if parquet else path.read_bytes().decode("utf-8", "replace")
            found += [(path.relative_to(folder).as_posix(), word) for word in words if word in text]
    return found
