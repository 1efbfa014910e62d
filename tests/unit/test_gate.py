"""The gate: each way in which data can be unfit stops it, and the rows are named."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest, GateCheck
from ingest.contracts.errors import ContractError
from ingest.contracts.files import FileEntry, digest_file, read_manifest, write_manifest
from ingest.datasets import CANDIDATE, MANIFEST, ROWS, accepted_ids
from ingest.expectations import LIKE_THE_LAST
from ingest.gate import GateBroken, GateFailed, gate, index_of
from ingest.lake import TURNS, read
from tests.lakes import feedback, land, turn

CUT = 10_000.0
SETTINGS = GateSettings(min_rows=4, max_age_seconds=100, max_version_age=1, max_key_share=0.75)

YOUNG = {"finished_at": CUT - 10, "output_tokens": 3}

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


def change(*changed: int, **values: Any) -> Callable[[Rows], Rows]:
    """Rows with some fields of some rows set."""
    return lambda rows: [row | values if number in changed else row for number, row in enumerate(rows)]


ALL = (0, 1, 2, 3)


def spans(*tiles: tuple[str, int, int]) -> dict[str, Any]:
    """The versions of an answer's tokens."""
    return {"weight_versions": [dict(zip(("version", "start", "end"), tile, strict=True)) for tile in tiles]}


SPOILED = {
    "another policy": ({"policy": "q"}, "one policy"),
    "no prompt": ({"prompt_ids": []}, "a prompt"),
    "no answer": ({"output_ids": [], "logprobs": [], **spans()}, "an answer"),
    "a logprob too few": ({"logprobs": [-1.0, -1.0]}, "a logprob for each token"),
    "a logprob that is no number": ({"logprobs": [-1.0, float("nan"), -1.0]}, "logprobs are numbers"),
    "a logprob above 0": ({"logprobs": [-1.0, 0.5, -1.0]}, "logprobs not above 0"),
    "a logprob too low": ({"logprobs": [-1.0, -51.0, -1.0]}, "logprobs not too low"),
    "minus infinity": ({"logprobs": [-1.0, float("-inf"), -1.0]}, "logprobs not too low"),
    "a gap between versions": (spans(("v3", 0, 1), ("v3", 2, 3)), "a version for each token"),
    "tokens without a version": (spans(("v3", 0, 2)), "a version for each token"),
    "an old version": (spans(("v1", 0, 1), ("v3", 1, 3)), "recent versions"),
    "an unknown version": (spans(("v9", 0, 3)), "known versions"),
    "a stale turn": ({"started_at": CUT - 101}, "recent turns"),
    "a turn of the future": ({"started_at": CUT + 1}, "recent turns"),
    "no reward": ({"reward": None}, "a reward"),
    "no weight": ({"weight": 0.0}, "a weight"),
    "the same turn": ({}, "no turn twice"),
    "the same turn, revised": ({}, "no turn twice"),
}
"""What may be wrong with a row, and the check that finds it: by that check alone the row is named."""


def test_bad_rows_stay_out_and_are_named(tmp_path: Path, docs: Path) -> None:
    rows = good_rows()
    for number, (name, (values, _)) in enumerate(SPOILED.items()):
        rows.append(rows[0] | {"turn_id": name, "key_id": f"key {number % 2}", "subject": name} | values)
    rows += [row for row in rows if row["turn_id"] == "the same turn"]
    rows += [row | {"feedback_revision": 2} for row in rows if row["turn_id"] == "the same turn, revised"]
    propose(tmp_path, rows, statistics={})
    expected: dict[str, tuple[str, ...]] = {}
    for name, (_, check) in SPOILED.items():
        expected[check] = (*expected.get(check, ()), name)
    assert failed(tmp_path, docs) == expected


BAD = {
    "tiny": (lambda rows: rows[:3], {"enough rows": ("a", "b", "c")}),
    "one reward": (change(*ALL, reward=0.75), {"rewards differ": ("a", "b", "c", "d")}),
    "one subject": (change(0, 1, 2, subject="u"), {"no subject dominates": ("a", "b", "c")}),
    "one key": (change(*ALL, key_id="k"), {"no key dominates": ("a", "b", "c", "d")}),
}


@pytest.mark.parametrize("case", BAD)
def test_rows_that_are_bad_together_stay_out_and_are_named(tmp_path: Path, docs: Path, case: str) -> None:
    spoil, expected = BAD[case]
    rows = spoil(good_rows())
    propose(tmp_path, rows, statistics={})
    assert failed(tmp_path, docs) == expected


def test_one_bad_row_is_enough(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, change(1, policy="q")(good_rows()), statistics={})
    assert failed(tmp_path, docs) == {"one policy": ("b",)}


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
    assert accepted_ids(tmp_path, "p") == ("d1",)


def test_drift_from_the_last_dataset_stays_out(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows("abcd"), "d1")
    ask(tmp_path, docs, "d1")
    long = change(*ALL, output_ids=[1] * 10, logprobs=[-1.0] * 10)(good_rows("efgh"))
    propose(tmp_path, change(*ALL, weight_versions=[{"version": "v3", "start": 0, "end": 10}])(long), "long")
    assert failed(tmp_path, docs, "long") == {"length like the last dataset's": tuple("efgh")}
    many = good_rows("efghijklmnop")
    propose(tmp_path, [row | {"reward": -0.25 - number / 100} for number, row in enumerate(many)], "unloved")
    strict = SETTINGS.model_copy(update={"max_acceptance_change": 0.4})
    with pytest.raises(
        GateFailed, match=r"acceptance like the last dataset's: saw 0\.0; turns: e, f, g, h, i and 7 more"
    ):
        ask(tmp_path, docs, "unloved", strict)
    propose(tmp_path, good_rows("efgh"), "like it")
    assert {check.name for check in ask(tmp_path, docs, "like it").gate} >= set(LIKE_THE_LAST)


def test_of_a_number_that_does_not_hold_the_rows_that_deviate_most_are_named(tmp_path: Path, docs: Path) -> None:
    propose(tmp_path, good_rows("abcd"), "d1")
    ask(tmp_path, docs, "d1")
    rows = good_rows("".join(chr(ord("a") + n) for n in range(4, 26)))
    lengths = [3] * 18 + [9, 90, 30, 60]
    for row, length in zip(rows, lengths, strict=True):
        row |= {"output_ids": [1] * length, "logprobs": [-1.0] * length}
        row |= {"weight_versions": [{"version": "v3", "start": 0, "end": length}]}
    propose(tmp_path, rows, "d2")
    (named,) = failed(tmp_path, docs, "d2").values()
    assert (len(named), named[:4]) == (20, ("x", "z", "y", "w"))


def test_drift_of_the_language_stays_out(tmp_path: Path, docs: Path) -> None:
    known = {"mean_output_tokens": 3.0, "accept_rate": 0.5, "language_known": 40.0}
    propose(tmp_path, good_rows(), statistics=known | {"language.en": 0.9, "language.de": 0.1})
    ask(tmp_path, docs)
    names = "".join(chr(ord("a") + n) for n in range(4, 18))
    rows = [row | {"language": "en" if n < 4 else "fr"} for n, row in enumerate(good_rows(names))]
    propose(tmp_path, rows, "d2")
    assert failed(tmp_path, docs, "d2") == {"language like the last dataset's": tuple(names[4:])}
    # Nine answers whose language is known tell nothing about shares.
    propose(tmp_path, [row | {"language": "fr" if n < 9 else None} for n, row in enumerate(rows)], "d3")
    assert ask(tmp_path, docs, "d3").gate


@pytest.mark.parametrize(("keys", "stopped"), [(1, False), (2, True)])
def test_a_key_may_have_all_rows_where_turns_of_no_other_were_judged(
    tmp_path: Path, docs: Path, keys: int, stopped: bool
) -> None:
    """Nobody named: turns of nobody in particular count by their key."""
    land(tmp_path / "lake", "turns", *[turn(f"t{n}", key_id=f"key {n}", **YOUNG) for n in range(3)])
    said = [feedback(f"t{n}", key_id=f"key {n}", received_at=CUT - 5) for n in range(keys)]
    land(tmp_path / "lake", "feedback", *said)
    rows = change(*ALL, key_id="key 0", subject="")(good_rows())
    propose(tmp_path, rows)
    if stopped:
        named = failed(tmp_path, docs)
        assert named == {"no key dominates": tuple("abcd")}
    else:
        assert ask(tmp_path, docs).gate


def test_turns_and_signals_of_a_lake_that_are_not_in_order_are_named(tmp_path: Path, docs: Path) -> None:
    turns = [
        turn("twice", **YOUNG),
        turn("twice", **YOUNG),
        turn("unknown end", finish="eof", **YOUNG),
        turn("short", logprobs=[-1.0], **YOUNG),
        turn("greedy", logprobs=[], trainable=False, **YOUNG),
        turn("backwards", **YOUNG) | {"started_at": CUT},
        turn("winked at", **YOUNG),
        turn("scored", **YOUNG),
    ]
    signals = [
        feedback("winked at", "wink", received_at=CUT - 5),
        feedback("scored", "score", value=float("nan"), received_at=CUT - 5),
    ]
    fill(tmp_path / "lake", *turns, signals=signals)
    propose(tmp_path, good_rows())
    assert failed(tmp_path, docs) == {
        "turns: no turn twice": ("twice",),
        "turns: a known end": ("unknown end",),
        "turns: ended after they began": ("backwards",),
        "turns: a logprob for each token": ("short",),
        "feedback: a known kind": ("winked at",),
        "feedback: a number where one belongs": ("scored",),
    }


LAKE = {
    "no turns": ([], [], {"turns: turns were recorded": ()}),
    "a broken engine": (
        [turn(f"b{n}", finish="engine_lost", trainable=False, **YOUNG) for n in range(5)],
        [],
        {"turns: most were answered": ("b0", "b1", "b2", "b3", "b4", "t0", "t1")},
    ),
    "strangers": (
        [],
        [feedback("t0", key_id=f"x{n}", received_at=CUT - 5) for n in range(3)],
        {"feedback: most senders may judge": ("t0", "t1")},
    ),
    "one that judges most": (
        [turn(f"b{n}", key_id="key 0", **YOUNG) for n in range(9)],
        [feedback(f"b{n}", key_id="key 0", received_at=CUT - 5) for n in range(9)],
        {"feedback: no sender dominates": ("t0", *(f"b{n}" for n in range(9)))},
    ),
}


@pytest.mark.parametrize("case", LAKE)
def test_a_lake_that_is_not_in_order_as_a_whole_stops_the_dataset(tmp_path: Path, docs: Path, case: str) -> None:
    turns, signals, expected = LAKE[case]
    if case == "no turns":
        land(tmp_path / "lake", "turns", turn("old", finished_at=10.0), turn("other", policy="q", **YOUNG))
    else:
        fill(tmp_path / "lake", *turns, signals=signals)
    propose(tmp_path, good_rows())
    assert {name: set(rows) for name, rows in failed(tmp_path, docs).items()} == {
        name: set(rows) for name, rows in expected.items()
    }


def test_trusted_keys_may_judge_and_dominate(tmp_path: Path, docs: Path) -> None:
    fill(tmp_path / "lake", signals=[feedback("t0", key_id="annotator", received_at=CUT - 5) for _ in range(30)])
    propose(tmp_path, good_rows(), attribution={"trusted_keys": ["annotator"]})
    assert ask(tmp_path, docs).gate


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
