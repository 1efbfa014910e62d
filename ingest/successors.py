"""What an erasure leaves of datasets and of their pages.

A dataset that holds what is erased gets a successor in its own folder, under its own id: the rows that are left, in
their order, in a new file, and a manifest that names it and says how many rows went (`Succession`). The manifest is
replaced at once, so a reader finds the old dataset or the new one; the old rows go last. Validation results and
Data Docs that name a turn which is erased go whole: the checks of an accepted dataset stay in its manifest.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.contracts.dataset import DatasetManifest, GateCheck, Succession
from ingest.contracts.erasure import TARGETS, erasure_digest
from ingest.contracts.files import FileEntry, digest_file, read_manifest, sync, verify_files, write_atomically
from ingest.datasets import CANDIDATE, MANIFEST
from ingest.row_groups import write_groups

Digests = Mapping[str, str]
"""Digest → target of what is to go."""

_IDS = ["turn_id", "subject", "session_id"]
RESULTS = Path("gx", "uncommitted", "validations")
PAGES = Path("site", "validations")
INDEX = Path("site", "index.html")
"""Data Docs below their folder: results of validations, a page of each, and the first page."""


def erase_dataset(folder: Path, goal: Digests, receipt_id: str, now: float) -> int:
    """Takes what `goal` covers out of a dataset or a candidate; how many rows that was.

    Nobody else may write in the folder meanwhile. Raises `ContractError` where the rows are not those that a manifest
    names.
    """
    removed = 0
    for name in _manifests(folder):
        manifest = read_manifest(folder, DatasetManifest, name)
        verify_files(folder, (manifest.rows,))
        removed = max(removed, _succeed(folder, name, manifest, goal, receipt_id, now))
    named = {folder / read_manifest(folder, DatasetManifest, name).rows.path for name in _manifests(folder)}
    for path in set(folder.glob("*.parquet")) - named:
        path.unlink()  # rows before this, or of a freezing that was killed
    for path in folder.glob("join-*"):
        shutil.rmtree(path)  # what a killed freezing had no room for in memory
    for path in folder.glob(".*.partial"):
        path.unlink()  # a manifest that a killed process was writing
    return removed


def turns_within(folder: Path, goal: Digests) -> list[str]:
    """Ids of the turns in a dataset or a candidate that `goal` covers: the lake may have let go of them before."""
    found: set[str] = set()
    for name in _manifests(folder):
        ids = pq.read_table(folder / read_manifest(folder, DatasetManifest, name).rows.path, columns=_IDS)
        found.update(ids["turn_id"].filter(pc.invert(_left(ids, goal))).to_pylist())
    return sorted(found)


def succeeded(datasets: Path, receipt_id: str) -> Iterator[tuple[str, str]]:
    """(policy, dataset id) of the accepted datasets that have a successor by this receipt."""
    for path in sorted(datasets.glob(f"*/*/{MANIFEST}")):
        manifest = read_manifest(path.parent, DatasetManifest)
        if any(one.erasure_id == receipt_id for one in manifest.erased):
            yield manifest.policy, manifest.dataset_id


def erase_pages(docs: Path, goal: Digests) -> int:
    """Removes each validation result, with its page, that names somebody or a turn in `goal`; how many there were.

    The page that links them goes first: where it is missing, it is to be made anew (`ingest.gate.write_index`).
    """
    removed = 0
    for result in sorted((docs / RESULTS).rglob("*.json")):
        if any(erasure_digest(target, text) in goal for text in _strings(result) for target in TARGETS):
            (docs / INDEX).unlink(missing_ok=True)
            page = docs / PAGES / result.relative_to(docs / RESULTS).with_suffix(".html")
            page.unlink(missing_ok=True)
            result.unlink()  # last: who is killed before finds the page by it
            removed += 1
    return removed


def _succeed(folder: Path, name: str, manifest: DatasetManifest, goal: Digests, receipt_id: str, now: float) -> int:
    before = folder / manifest.rows.path
    left = _left(pq.read_table(before, columns=_IDS), goal)
    gone = left.false_count
    gate = tuple(_without(check, goal) for check in manifest.gate)  # its suites name turns of the lake, too
    if not gone:
        if gate != manifest.gate:
            _replace(folder, name, msgspec.structs.replace(manifest, gate=gate))
        return 0
    after = folder / f"rows-{len(manifest.erased) + 1}.parquet"
    segments: set[str] = set()
    written = write_groups(after, _groups(before, left, segments))
    sync(after)
    successor = msgspec.structs.replace(
        manifest,
        pairs=tuple(written.pairs),
        baselines={segment: found for segment, found in manifest.baselines.items() if segment in segments},
        gate=gate,
        rows=FileEntry(after.name, after.stat().st_size, digest_file(after)),
        statistics=manifest.statistics | written.statistics(),
        erased=(*manifest.erased, Succession(receipt_id, gone, manifest.rows.sha256, now)),
    )
    _replace(folder, name, successor)
    return gone


def _replace(folder: Path, name: str, manifest: DatasetManifest) -> None:
    write_atomically(folder / name, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def _without(check: GateCheck, goal: Digests) -> GateCheck:
    rows = tuple(row for row in check.rows if erasure_digest("turn", row) not in goal)
    return msgspec.structs.replace(check, rows=rows)


def _groups(rows: Path, left: pa.BooleanArray, segments: set[str]) -> Iterator[pa.Table]:
    """What is left of each row group; fills `segments` with those that are in it."""
    at = 0
    with pq.ParquetFile(rows) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            kept = group.filter(left.slice(at, group.num_rows))
            at += group.num_rows
            if kept.num_rows:
                segments.update(pc.unique(kept["segment"]).to_pylist())
                yield kept.combine_chunks()


def _left(ids: pa.Table, goal: Digests) -> pa.BooleanArray:
    """Of each row, whether nothing in `goal` covers it."""
    targets = ("turn", "subject", "session")
    rows = zip(*(ids[name].to_pylist() for name in _IDS), strict=True)
    covered = (any(erasure_digest(*pair) in goal for pair in zip(targets, row, strict=True)) for row in rows)
    return pa.array([not found for found in covered], pa.bool_())


def _manifests(folder: Path) -> list[str]:
    return [name for name in (CANDIDATE, MANIFEST) if (folder / name).exists()]


def _strings(path: Path) -> Iterator[str]:
    """Every text in a JSON file."""
    left: list[Any] = [json.loads(path.read_bytes())]
    while left:
        match left.pop():
            case str(text):
                yield text
            case dict(found):
                left += [*found.keys(), *found.values()]
            case list(found):
                left += found
