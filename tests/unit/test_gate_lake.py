"""The gate on the lake: turns and signals that are not in order stop the dataset, and are named."""

from pathlib import Path

import pytest

from tests.gates import CUT, YOUNG, ask, failed, fill, good_rows, propose
from tests.lakes import feedback, land, turn


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
