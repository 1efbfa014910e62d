"""What an erasure leaves of a dataset: its other rows in their order, a manifest that counts, nothing beside."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from ingest.contracts.dataset import Baseline, DatasetManifest, GateCheck
from ingest.contracts.erasure import erasure_digest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS
from ingest.row_groups import write_groups
from ingest.successors import erase_dataset, erase_pages, succeeded, turns_within
from tests.lakes import read_rows

ANNA = {erasure_digest("subject", "anna"): "subject"}


def row(turn_id: str, subject: str, **changes: Any) -> dict[str, Any]:
    values = dict.fromkeys(ROWS.names) | {"sample": 0, "feedback_revision": 1, "session_id": f"s-{subject}"}
    values |= {"segment": f"of {subject}", "prompt_ids": [1], "output_ids": [2, 3], "reward": 1.0, "weight": 1.0}
    return values | {"turn_id": turn_id, "subject": subject} | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two row groups; a candidate and an accepted dataset that name one file."""
    folder = tmp_path / "p" / "d1"
    folder.mkdir(parents=True)
    groups = [[row("a1", "anna"), row("b1", "ben")], [row("a2", "anna")], [row("b2", "ben"), row("c1", "carl")]]
    path = folder / "rows.parquet"
    written = write_groups(path, (pa.Table.from_pylist(group, schema=ROWS) for group in groups))
    manifest = DatasetManifest(
        dataset_id="d1",
        policy="p",
        created_at=1.0,
        cut_at=1.0,
        lake_versions={},
        log_ranges={},
        pairs=tuple(written.pairs),
        counts={},
        reward_specification={},
        reward_digest="",
        baselines={f"of {name}": Baseline(0.5, 3.0) for name in ("anna", "ben", "carl")},
        rows=FileEntry(path.name, path.stat().st_size, digest_file(path)),
        statistics=written.statistics() | {"response_rate": 0.5},
        gate=(GateCheck("a check", True, "2 of 9 rows", ("a9", "z1")),),
    )
    write_manifest(folder, manifest, CANDIDATE)
    write_manifest(folder, manifest)
    return folder


def test_the_rows_that_are_left_keep_their_order_and_the_manifest_counts_the_others(folder: Path) -> None:
    before = read_manifest(folder, DatasetManifest)
    assert erase_dataset(folder, ANNA, "er-1", now=9.0) == 2
    after = read_manifest(folder, DatasetManifest)
    assert read_manifest(folder, DatasetManifest, CANDIDATE) == after
    assert read_rows(folder)["turn_id"].to_pylist() == ["b1", "b2", "c1"] == [pair[0] for pair in after.pairs]
    assert set(after.baselines) == {"of ben", "of carl"}, "a segment may be named after somebody"
    assert (after.statistics["rows"], after.statistics["response_rate"]) == (3.0, 0.5)
    [succession] = after.erased
    assert msgspec.to_builtins(succession) == {
        "erasure_id": "er-1",
        "rows": 2,
        "before_sha256": before.rows.sha256,
        "at": 9.0,
    }
    assert sorted(path.name for path in folder.iterdir()) == [CANDIDATE, MANIFEST, "rows-1.parquet"]
    assert list(succeeded(folder.parent.parent, "er-1")) == [("p", "d1")]
    assert erase_dataset(folder, ANNA, "er-1", now=10.0) == 0
    assert read_manifest(folder, DatasetManifest) == after


def test_a_dataset_may_lose_all_its_rows_one_after_the_other(folder: Path) -> None:
    for number, name in enumerate(("anna", "ben", "carl"), 1):
        assert erase_dataset(folder, {erasure_digest("subject", name): "subject"}, f"er-{number}", now=9.0)
    manifest = read_manifest(folder, DatasetManifest)
    assert (manifest.pairs, read_rows(folder).num_rows, len(manifest.erased)) == ((), 0, 3)


def test_turns_that_only_its_gate_names_go_from_the_manifest(folder: Path) -> None:
    before = read_manifest(folder, DatasetManifest)
    assert erase_dataset(folder, {erasure_digest("turn", "a9"): "turn"}, "er-1", now=9.0) == 0
    after = read_manifest(folder, DatasetManifest)
    assert after.gate[0].rows == ("z1",)
    assert (after.rows, after.erased) == (before.rows, ()), "no checkpoint learned from it"


def test_killed_anywhere_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ingest import successors

    real, calls = successors.write_atomically, iter(range(100))

    def killed_at_the_second(path: Path, data: bytes) -> None:
        real(path, data)
        if next(calls) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(successors, "write_atomically", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        erase_dataset(folder, ANNA, "er-1", now=9.0)
    assert read_rows(folder).num_rows == 5, "the accepted dataset is the old one still, and whole"
    assert read_rows(folder, CANDIDATE).num_rows == 3
    assert erase_dataset(folder, ANNA, "er-1", now=9.0) == 2
    assert read_rows(folder).num_rows == 3
    assert not (folder / "rows.parquet").exists()


def test_what_a_killed_freezing_left_goes(folder: Path) -> None:
    (folder / "join-abc").mkdir()
    (folder / "join-abc" / "spill").write_text("what anna said")
    orphan = folder.parent / "d2"
    orphan.mkdir()
    (orphan / "rows.parquet").write_text("what anna said")
    erase_dataset(folder, ANNA, "er-1", now=9.0)
    erase_dataset(orphan, ANNA, "er-1", now=9.0)
    assert not (folder / "join-abc").exists()
    assert list(orphan.iterdir()) == []


def test_damaged_rows_are_told(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(ContractError, match="differs from its manifest"):
        erase_dataset(folder, ANNA, "er-1", now=9.0)


def test_turns_are_found_by_their_subject_and_pages_by_the_turns(folder: Path, tmp_path: Path) -> None:
    assert turns_within(folder, ANNA) == ["a1", "a2"]
    results, pages = (tmp_path / "docs" / place / "validations" / "p" / "d1" for place in ("gx/uncommitted", "site"))
    for name, turn in (("one", "a1"), ("other", "b1")):
        for path in (results / f"{name}.json", pages / f"{name}.html"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'{{"unexpected_index_list": [{{"turn_id": "{turn}"}}]}}')
    assert erase_pages(tmp_path / "docs", {erasure_digest("turn", "a1"): "turn"}) == 1
    assert [path.name for path in results.iterdir()] == ["other.json"]
    assert [path.name for path in pages.iterdir()] == ["other.html"]
