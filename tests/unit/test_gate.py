"""The gate: what it leaves of a dataset that it let pass or stopped, and what keeps it from being asked."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.errors import ContractError
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE
from ingest.gate import GateBroken, GateFailed, index_of
from tests.gates import ALL, CUT, YOUNG, ask, change, fill, good_rows, propose
from tests.lakes import feedback, turn


def test_good_data_passes_and_its_manifest_says_what_was_checked(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows())
    manifest = ask(tmp_path, docs)
    assert manifest == read_manifest(tmp_path / "p" / "d1", DatasetManifest)
    assert len([check for check in manifest.gate if ":" not in check.name]) == 19
    assert {check.name.partition(":")[0] for check in manifest.gate if ":" in check.name} == {"turns", "feedback"}
    assert all(check.passed for check in manifest.gate)
    assert manifest.gate[0] == GateCheck(name="enough rows", passed=True, observed="4")
    assert ask(tmp_path, docs, settings=GateSettings(min_rows=1000)) == manifest


def test_data_docs_show_each_dataset(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    for policy_dataset in ("one", "two"):
        propose(tmp_path, good_rows() if policy_dataset == "two" else [], policy_dataset)
    with pytest.raises(GateFailed):
        ask(tmp_path, docs, "one")
    ask(tmp_path, docs, "two")
    index = index_of(docs).read_text()
    assert "one" in index
    assert "two" in index
    site = index_of(docs).parent
    assert {path.parts[-3] for path in site.glob("validations/p/*/*/*.html")} == {"one", "two"}
    assert (site / "expectations" / "p.html").exists()
    assert (site / "expectations" / "p turns.html").exists()


def test_data_docs_name_turns_and_hold_nothing_that_a_user_wrote(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    wrote = {"request": "secret words", "answer": "secret words", "subject": "secret subject"} | YOUNG
    bad = feedback("written", "edit", text="secret words", subject="secret subject", source="secret source")
    fill(
        tmp_path / "lake",
        turn("written", finish="eof", session_id="secret session", metadata='{"a": "secret metadata"}', **wrote),
        signals=[bad | {"key_id": "stranger", "received_at": CUT - 5, "kind": "wink"}],
    )
    private_words = ("words", "subject", "session", "metadata", "source", "segment", "sampling")
    private = change(*ALL, subject="secret subject", session_id="secret session", segment="secret segment")
    propose(tmp_path, [row | {"reward": 0.5, "sampling": "secret sampling"} for row in private(good_rows())])
    with pytest.raises(GateFailed) as caught:
        ask(tmp_path, docs)
    assert "written" in str(caught.value)
    texts = [path.read_text(errors="ignore") for path in docs.rglob("*") if path.is_file()]
    assert any("written" in text for text in texts)
    assert not any(f"secret {what}" in text for text in texts for what in private_words)


def test_data_docs_keep_the_newest_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.gate.KEPT", 2)
    docs = tmp_path / "docs"
    for number, dataset in enumerate(("z", "y", "x")):
        rows = [row | {"turn_id": f"{dataset} {row['turn_id']}"} for row in good_rows()]
        propose(tmp_path, rows, dataset, created_at=CUT + number)
        ask(tmp_path, docs, dataset)
    results = {path.parts[-3] for path in docs.glob("gx/uncommitted/validations/p/*/*/*.json")}
    assert results == {path.parts[-3] for path in docs.glob("site/validations/p/*/*/*.html")} == {"y", "x"}
    index = index_of(docs).read_text()
    assert "validations/p/x/" in index
    assert "validations/p/z/" not in index


def test_a_missing_column_breaks_the_gate(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows(), without=("logprobs",))
    with pytest.raises(GateBroken, match="no column logprobs"):
        ask(tmp_path, docs)


def test_a_column_of_another_type_breaks_the_gate(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows())
    folder = tmp_path / "p" / "d1"
    table = pq.read_table(folder / "rows.parquet")
    table = table.set_column(0, "turn_id", pa.array([1, 2, 3, 4]))
    pq.write_table(table, folder / "rows.parquet")
    entry = FileEntry("rows.parquet", (folder / "rows.parquet").stat().st_size, digest_file(folder / "rows.parquet"))
    old = read_manifest(folder, DatasetManifest, CANDIDATE)
    write_manifest(
        folder, type(old)(**{f: getattr(old, f) for f in old.__struct_fields__} | {"rows": entry}), CANDIDATE
    )
    with pytest.raises(GateBroken, match="another type in column turn_id"):
        ask(tmp_path, docs)


def test_there_must_be_an_unchanged_candidate(tmp_path: Path, docs: Path) -> None:
    with pytest.raises(ContractError, match="never completed"):
        ask(tmp_path, docs)
    propose(tmp_path, good_rows())
    with (tmp_path / "p" / "d1" / "rows.parquet").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ContractError, match="differs from its manifest"):
        ask(tmp_path, docs)


def test_its_errors_survive_the_way_to_another_process() -> None:
    check = GateCheck(name="enough rows", passed=False, observed="0", rows=tuple("abcdefg"))
    error = pickle.loads(pickle.dumps(GateFailed("p", "d1", (check,))))
    assert error.checks == (check,)
    assert str(error).endswith("- enough rows: saw 0; turns: a, b, c, d, e and 2 more")
