"""The gate: each way in which data can be unfit stops it, and the rows are named."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.errors import ContractError
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS, list_datasets
from ingest.gate import GateBroken, GateFailed, gate, index_of

CUT = 10_000.0
SETTINGS = GateSettings(min_rows=4, max_age_seconds=100, max_version_age=1, max_key_share=0.75)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of Data Docs for all tests, as one worker has."""
    return tmp_path_factory.mktemp("docs")


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
    return gate(datasets=datasets, policy="p", dataset_id=dataset_id, settings=settings, docs=docs)


def failed(datasets: Path, docs: Path, dataset_id: str = "d1") -> dict[str, tuple[str, ...]]:
    """Names of the checks that failed, with their rows; the candidate must have stayed out."""
    with pytest.raises(GateFailed) as caught:
        ask(datasets, docs, dataset_id)
    assert not (datasets / "p" / dataset_id / MANIFEST).exists()
    assert all(check.name in str(caught.value) for check in caught.value.checks)
    return {check.name: check.rows for check in caught.value.checks}


def test_good_data_passes_and_its_manifest_says_what_was_checked(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows())
    manifest = ask(tmp_path, docs)
    assert manifest == read_manifest(tmp_path / "p" / "d1", DatasetManifest)
    assert len(manifest.gate) == 19
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
    assert "subject 1" not in "".join(path.read_text() for path in site.glob("validations/p/*/*/*.html"))


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


def change(*changed: int, **values: Any) -> Callable[[Rows], Rows]:
    """Rows with some fields of some rows set."""
    return lambda rows: [row | values if number in changed else row for number, row in enumerate(rows)]


ALL = (0, 1, 2, 3)
BAD = {
    "tiny": (lambda rows: rows[:3], {"enough rows": ()}),
    "another policy": (change(1, policy="q"), {"one policy": ("b",)}),
    "the same turn twice": (change(1, turn_id="a"), {"no turn twice": ("a",)}),
    "the same turn, revised": (change(1, turn_id="a", feedback_revision=2), {"no turn twice": ("a",)}),
    "no prompt": (change(2, prompt_ids=[]), {"a prompt": ("c",)}),
    "no answer": (change(2, output_ids=[], logprobs=[], weight_versions=[]), {"an answer": ("c",)}),
    "a logprob too few": (change(0, logprobs=[-1.0, -1.0]), {"a logprob for each token": ("a",)}),
    "a logprob that is no number": (change(3, logprobs=[-1.0, float("nan"), -1.0]), {"logprobs are numbers": ("d",)}),
    "a logprob above 0": (change(3, logprobs=[-1.0, 0.5, -1.0]), {"logprobs not above 0": ("d",)}),
    "a logprob too low": (change(3, logprobs=[-1.0, -51.0, -1.0]), {"logprobs not too low": ("d",)}),
    "minus infinity": (change(3, logprobs=[-1.0, float("-inf"), -1.0]), {"logprobs not too low": ("d",)}),
    "a gap between versions": (
        change(1, weight_versions=[{"version": "v3", "start": 0, "end": 1}, {"version": "v3", "start": 2, "end": 3}]),
        {"a version for each token": ("b",)},
    ),
    "tokens without a version": (
        change(1, weight_versions=[{"version": "v3", "start": 0, "end": 2}]),
        {"a version for each token": ("b",)},
    ),
    "an old version": (
        change(1, weight_versions=[{"version": "v1", "start": 0, "end": 1}, {"version": "v3", "start": 1, "end": 3}]),
        {"recent versions": ("b",)},
    ),
    "an unknown version": (
        change(1, weight_versions=[{"version": "v9", "start": 0, "end": 3}]),
        {"known versions": ("b",)},
    ),
    "stale turns": (change(0, 2, started_at=CUT - 101), {"recent turns": ("a", "c")}),
    "turns of the future": (change(0, started_at=CUT + 1), {"recent turns": ("a",)}),
    "no reward": (change(0, reward=None), {"a reward": ("a",)}),
    "no weight": (change(0, weight=0.0), {"a weight": ("a",)}),
    "one reward": (change(*ALL, reward=0.75), {"rewards differ": ()}),
    "one subject": (change(0, 1, 2, subject="u"), {"no subject dominates": ("a", "b", "c")}),
    "one key": (change(*ALL, key_id="k"), {"no key dominates": ("a", "b", "c", "d")}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_stays_out_and_its_rows_are_named(tmp_path: Path, docs: Path, case: str) -> None:
    spoil, expected = BAD[case]
    rows = spoil(good_rows())
    propose(tmp_path, rows, statistics={})
    assert failed(tmp_path, docs) == expected


def test_empty_data_stays_out(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, [])
    assert set(failed(tmp_path, docs)) == {"enough rows", "rewards differ"}


def test_subjects_that_nobody_named_dominate_nothing(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, change(*ALL, subject="")(good_rows()))
    assert ask(tmp_path, docs).gate


def test_a_turn_of_an_accepted_dataset_enters_no_other(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows("abcd"), "d1")
    propose(tmp_path, change(1, feedback_revision=7)(good_rows("ebfg")), "d2")
    ask(tmp_path, docs, "d1")
    assert failed(tmp_path, docs, "d2") == {"in no other dataset": ("b",)}
    assert [manifest.dataset_id for manifest in list_datasets(tmp_path, "p")] == ["d1"]


def test_drift_from_the_last_dataset_stays_out(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows("abcd"), "d1")
    ask(tmp_path, docs, "d1")
    long = change(*ALL, output_ids=[1] * 10, logprobs=[-1.0] * 10)(good_rows("efgh"))
    propose(tmp_path, change(*ALL, weight_versions=[{"version": "v3", "start": 0, "end": 10}])(long), "long")
    assert failed(tmp_path, docs, "long") == {"length like the last dataset's": ()}
    many = good_rows("efghijklmnop")
    propose(tmp_path, [row | {"reward": -0.25 - number / 100} for number, row in enumerate(many)], "unloved")
    strict = SETTINGS.model_copy(update={"max_acceptance_change": 0.4})
    with pytest.raises(GateFailed, match=r"acceptance like the last dataset's: saw 0\.0"):
        ask(tmp_path, docs, "unloved", strict)
    propose(tmp_path, good_rows("efgh"), "like it")
    assert len(ask(tmp_path, docs, "like it").gate) == 21


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
