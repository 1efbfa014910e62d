"""The gate on a candidate's rows: each way in which they can be unfit stops it, and the rows are named."""

from pathlib import Path
from typing import Any

import pytest

from ingest.datasets import accepted_ids
from ingest.expectations import LIKE_THE_LAST
from ingest.gate import GateFailed
from tests.gates import ALL, CUT, SETTINGS, YOUNG, ask, change, failed, good_rows, propose
from tests.lakes import feedback, land, turn


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
