"""Weights: nobody who says much decides for everybody, whatever is sent."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.attribution import AgeRate, Cut, attribute, joined
from ingest.config import AttributionSettings, DatasetSettings, RewardSettings, WeightSettings
from ingest.datasets import CANDIDATE
from ingest.freeze import freeze
from ingest.weights import choose
from tests.lakes import as_arrow, feedback, land, read_rows, turn

RULES = AttributionSettings(window_seconds=60, fresh_seconds=10_000)
CAP = 2.0


def chosen(
    turns: list[dict], said: list[dict], max_turns: int = 1000, now: float = 1000.0, **weights: float
) -> dict[str, tuple[float, float]]:
    """Turn id → reward, weight."""
    tables = {"turns": as_arrow("turns", turns), "feedback": as_arrow("feedback", said)}
    rewards = RewardSettings(weights=WeightSettings(**{"subject_turns": CAP, **weights}))
    with joined(tables | {"erasures": as_arrow("erasures", [])}, "p", RULES, rewards, Cut(now, now), ()) as join:
        choose(join, rewards, max_turns)
        rows = join.execute("SELECT turn_id, reward, weight FROM chosen ORDER BY place").fetchall()
    return {name: (reward, weight) for name, reward, weight in rows}


def judged(*names: str, at: float = 100.0, **changes: Any) -> tuple[list[dict], list[dict]]:
    """Turns of one subject, a second apart, each accepted."""
    turns = [turn(name, finished_at=at + place, **changes) for place, name in enumerate(names)]
    return turns, [feedback(t["turn_id"], received_at=t["finished_at"], key_id=t["key_id"]) for t in turns]


def test_the_turns_of_one_subject_weigh_together_what_the_cap_says() -> None:
    many, few = judged(*"abcdefgh", subject="u"), judged(*"xy", subject="v")
    weights = {name: weight for name, (_, weight) in chosen(many[0] + few[0], many[1] + few[1]).items()}
    assert weights == dict.fromkeys("abcdefgh", 0.25) | dict.fromkeys("xy", 1.0)


def test_turns_of_nobody_in_particular_are_capped_by_their_key() -> None:
    one, other = judged(*"abcd", subject="", key_id="k"), judged(*"wxyz", subject="", key_id="l")
    weights = {name: weight for name, (_, weight) in chosen(one[0] + other[0], one[1] + other[1], key_turns=3).items()}
    assert weights == dict.fromkeys("abcdwxyz", 0.75)


def test_who_sends_much_crowds_nobody_out() -> None:
    many, few = judged(*"abcdefgh", subject="u", at=500), judged(*"xy", subject="v")
    assert set(chosen(many[0] + few[0], many[1] + few[1], max_turns=5)) == set("xy" + "gh" + "f")


def test_propensity_is_off_by_default_and_clipped_where_it_is_on() -> None:
    """Half of the champion's turns are answered, an eighth of the challenger's: of all, a fifth."""
    turns = [turn(f"a{n}") for n in range(2)] + [turn(f"b{n}", arm="challenger") for n in range(8)]
    said = [feedback("a0"), feedback("b0")]
    assert chosen(turns, said) == {"a0": (0.75, 1.0), "b0": (0.75, 1.0)}
    assert chosen(turns, said, propensity_clip=10) == {"a0": (0.75, 0.4), "b0": (0.75, 1.6)}
    assert chosen(turns, said, propensity_clip=1.25) == {"a0": (0.75, 0.8), "b0": (0.75, 1.25)}


def test_the_dataset_carries_the_weights(tmp_path: Path) -> None:
    turns, said = judged(*[f"t{n}" for n in range(32)], subject="u")
    land(tmp_path, "turns", *turns)
    land(tmp_path, "feedback", *said)
    freeze(
        lake=tmp_path,
        datasets=tmp_path / "datasets",
        policy="p",
        dataset_id="d",
        settings=DatasetSettings(),
        attribution=RULES,
        rewards=RewardSettings(),
        now=1000.0,
        watermark=1000.0,
    )
    assert set(read_rows(tmp_path / "datasets" / "p" / "d", CANDIDATE)["weight"].to_pylist()) == {0.5}


@pytest.mark.parametrize(("finished", "age"), [(85.0, 1), (100.0, 0), (55.0, 3), (40.0, 4), (0.0, 4)])
def test_rates_by_age(tmp_path: Path, finished: float, age: int) -> None:
    land(tmp_path, "turns", turn("a", finished_at=finished))
    land(tmp_path, "feedback", feedback("a", received_at=finished))
    report = attribute(
        lake=tmp_path,
        policy="p",
        settings=RULES,
        rewards=RewardSettings(),
        now=100,
        watermark=100,
        used_datasets=tmp_path / "none",
    )
    assert report.ages == (AgeRate(arm="champion", segment="k", age=age, turns=1, answered=1),)


TIMES = st.integers(90, 130).map(float)
KINDS = st.sampled_from([("accept", None), ("reject", None), ("score", -1.0), ("score", 1.0), ("abstain", None)])


@st.composite
def doings(draw: st.DrawFn, subject: str, others: tuple[str, ...]) -> tuple[list[dict], list[dict]]:
    """What somebody does: turns, some of them asked again, and feedback on own and on others' turns and sessions, sent
    twice, revised, or with an idempotency key of its own that was used before."""
    turns = [
        turn(
            f"{subject}{number}",
            subject=subject,
            session_id=draw(st.sampled_from([f"of {subject}", "shared"])),
            prompt=[draw(st.integers(1, 3))],
            finished_at=draw(TIMES),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    said = []
    for number in range(draw(st.integers(0, 12))):
        kind, value = draw(KINDS)
        aimed = draw(st.sampled_from(["turn", "turn", "turn", "session", "session_of_turn"]))
        whose = draw(st.sampled_from([subject, subject, subject, *others]))
        name = draw(st.sampled_from([f"of {whose}", "shared"])) if aimed == "session" else f"{whose}{number % 8}"
        said.append(
            feedback(
                name,
                kind,
                target=aimed,
                value=value,
                subject=subject,
                source=draw(st.sampled_from(["user", "application"])),
                feedback_id=f"{subject} says {draw(st.integers(0, 9))}",
                received_at=draw(TIMES),
            )
        )
    return turns, said


@settings(max_examples=60)
@given(others=st.tuples(doings("u", ("v",)), doings("v", ("u", "eve"))), eve=doings("eve", ("u", "v")))
def test_whatever_one_subject_sends_moves_the_mean_no_further_than_the_bound(others: Any, eve: Any) -> None:
    turns, said = ([row for doing in others for row in doing[part]] for part in (0, 1))
    without, with_eve = chosen(turns, said), chosen(turns + eve[0], said + eve[1])
    assert {name: row for name, row in with_eve.items() if not name.startswith("eve")} == without
    assert sum(weight for name, (_, weight) in with_eve.items() if name.startswith("eve")) <= CAP + 1e-9
    if without:
        weight = sum(weight for _, weight in without.values())
        bound = 2 * RewardSettings().limit * CAP / (weight + CAP)
        assert abs(mean(with_eve) - mean(without)) <= bound + 1e-9


def mean(rows: dict[str, tuple[float, float]]) -> float:
    return sum(reward * weight for reward, weight in rows.values()) / sum(weight for _, weight in rows.values())
