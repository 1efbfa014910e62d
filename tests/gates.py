"""What tests ask the gate: candidates as freezing writes them, over a lake beyond reproach but for what is spoiled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS
from ingest.gate import GateFailed, gate
from ingest.lake import TURNS, read
from tests.lakes import feedback, land, turn

CUT = 10_000.0
SETTINGS = GateSettings(min_rows=4, max_age_seconds=100, max_version_age=1, max_key_share=0.75)

YOUNG = {"finished_at": CUT - 10, "output_tokens": 3}

Rows = list[dict[str, Any]]


def good_rows(names: str = "abcd") -> Rows:
    """Rows of two keys and as many subjects as rows, half of them accepted."""
    return [
        {
            "turn_id": name,
            "sample": 0,
            "feedback_revision": 1,
            "policy": "p",
            "key_id": f"key {number % 2}",
            "subject": f"subject {number}",
            "session_id": "s",
            "segment": "",
            "dialect": "chat",
            "prompt_ids": [1, 2],
            "output_ids": [3, 4, 5],
            "logprobs": [-1.0, -0.5, 0.0],
            "weight_versions": [{"version": "v2", "start": 0, "end": 1}, {"version": "v3", "start": 1, "end": 3}],
            "sampling": "{}",
            "finish": "stop",
            "reward": 0.75 if number % 2 else -0.25,
            "weight": 1.0,
            "started_at": CUT - 20,
            "finished_at": CUT - 10,
        }
        for number, name in enumerate(names)
    ]


def propose(datasets: Path, rows: Rows, dataset_id: str = "d1", without: tuple[str, ...] = (), **changes: Any) -> None:
    """Write a candidate as freezing does."""
    folder = datasets / "p" / dataset_id
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=ROWS).drop_columns(list(without))
    pq.write_table(table, folder / "rows.parquet")
    path = folder / "rows.parquet"
    rewards = [row["reward"] or 0.0 for row in rows]
    fields: dict[str, Any] = {
        "dataset_id": dataset_id,
        "policy": "p",
        "created_at": CUT,
        "cut_at": CUT,
        "lake_versions": {},
        "log_ranges": {},
        "pairs": tuple((row["turn_id"], row["sample"], row["feedback_revision"]) for row in rows),
        "counts": {},
        "versions": ("v3", "v2", "v1"),
        "reward_specification": {},
        "reward_digest": "",
        "baselines": {},
        "rows": FileEntry("rows.parquet", path.stat().st_size, digest_file(path)),
        "statistics": {"mean_output_tokens": 3.0, "accept_rate": sum(r > 0 for r in rewards) / max(1, len(rewards))},
    }
    write_manifest(folder, DatasetManifest(**fields | changes), CANDIDATE)


def ask(datasets: Path, docs: Path, dataset_id: str = "d1", settings: GateSettings = SETTINGS) -> DatasetManifest:
    """Ask the gate; a lake without turns gets some that are beyond reproach."""
    lake = datasets / "lake"
    if read(lake, TURNS).count_rows() == 0:
        fill(lake)
    suites = datasets / (settings.suites or "suites.toml")
    return gate(
        datasets=datasets, lake=lake, policy="p", dataset_id=dataset_id, settings=settings, suites=suites, docs=docs
    )


def fill(lake: Path, *spoiled: dict[str, Any], signals: Sequence[dict[str, Any]] = ()) -> None:
    """Two turns of two keys, each with a signal, and others."""
    made = [turn(f"t{n}", key_id=f"key {n}", **YOUNG) for n in range(2)]
    land(lake, "turns", *made, *spoiled)
    said = [feedback(f"t{n}", key_id=f"key {n}", received_at=CUT - 5) for n in range(2)]
    land(lake, "feedback", *said, *signals)


def failed(datasets: Path, docs: Path, dataset_id: str = "d1") -> dict[str, tuple[str, ...]]:
    """Names of the checks that failed, with their rows; the candidate must have stayed out."""
    with pytest.raises(GateFailed) as caught:
        ask(datasets, docs, dataset_id)
    assert not (datasets / "p" / dataset_id / MANIFEST).exists()
    assert all(check.name in str(caught.value) for check in caught.value.checks)
    kept = read_manifest(datasets / "p" / dataset_id, DatasetManifest, CANDIDATE)
    named = {turn_id for turn_id, _, _ in kept.pairs}
    assert {check.name for check in kept.gate if not check.passed} == {check.name for check in caught.value.checks}
    assert {name for check in kept.gate for name in check.rows} <= named
    return {check.name: check.rows for check in caught.value.checks}


def change(*changed: int, **values: Any) -> Callable[[Rows], Rows]:
    """Rows with some fields of some rows set."""
    return lambda rows: [row | values if number in changed else row for number, row in enumerate(rows)]


ALL = (0, 1, 2, 3)
