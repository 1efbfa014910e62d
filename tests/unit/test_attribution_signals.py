"""Which signals of a turn count, and what they are worth."""

from pathlib import Path

import pytest

from ingest.config import RewardSettings
from ingest.explain import Contribution, explain
from ingest.rewards import specification_digest
from tests.attributions import REWARDS, SETTINGS, report, states
from tests.lakes import feedback, land, turn


def told_of(lake: Path, turn_id: str) -> tuple[Contribution, ...]:
    rules = {"p": (SETTINGS, REWARDS)}
    return explain(lake, turn_id, rules=rules, datasets=lake / "none", now=1000, watermark=1000).signals


def test_late_feedback_does_not_count(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    land(tmp_path, "feedback", feedback("a", received_at=161, feedback_id="late"))
    assert states(tmp_path)["a"] == ("silent", 0, None)
    (told,) = told_of(tmp_path, "a")
    assert (told.feedback_id, told.status, told.contribution) == ("late", "late", 0.0)


def test_a_later_verdict_of_the_same_source_revises_the_earlier(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    land(
        tmp_path,
        "feedback",
        feedback("a", "reject", received_at=112),
        feedback("a", "accept", received_at=111),
        feedback("a", "accept", received_at=111, source="implicit:copied"),
    )
    assert states(tmp_path, now=111)["a"] == ("settled", 2, 1.0)
    assert states(tmp_path)["a"] == ("settled", 3, 0.5)
    told = told_of(tmp_path, "a")
    assert sorted((t.kind, t.source, t.status, t.contribution) for t in told) == [
        ("accept", "implicit:copied", "counted", 0.75),
        ("accept", "user", "revised", 0.0),
        ("reject", "user", "counted", -0.25),
    ]


def test_feedback_sent_twice_counts_once(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    land(
        tmp_path, "feedback", *[feedback("a", feedback_id="same", received_at=at, source=str(at)) for at in (111, 110)]
    )
    assert states(tmp_path)["a"] == ("settled", 1, 0.75)


@pytest.mark.parametrize(
    ("again", "status", "conflicting"),
    [
        ({}, "duplicate", 0),
        ({"occurred_at": 99.0}, "duplicate", 0),
        ({"kind": "reject"}, "conflicting", 1),
        ({"value": 0.5}, "conflicting", 1),
        ({"text": "other"}, "conflicting", 1),
        ({"subject": "somebody"}, "conflicting", 1),
        ({"kind": "reject", "key_id": "stranger"}, "unauthorised", 0),
    ],
)
def test_an_idempotency_key_that_comes_again_with_other_content_is_told(
    again: dict, status: str, conflicting: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first counts, in whatever order they landed; nothing says that the other is a revision."""
    land(tmp_path, "turns", turn("a"))
    said = {"feedback_id": "same", "kind": "accept"}
    land(tmp_path, "feedback", feedback("a", received_at=112, **{**said, **again}))
    land(tmp_path, "feedback", feedback("a", received_at=111, **said))
    assert states(tmp_path)["a"] == ("settled", 1, 0.75)
    assert report(tmp_path).conflicting == conflicting
    assert ("came again with other content" in caplog.text) == bool(conflicting)
    told = told_of(tmp_path, "a")
    assert [each.status for each in told] == ["counted", status]


def test_an_idempotency_key_that_comes_again_for_another_turn_conflicts_there(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"), turn("b"))
    land(
        tmp_path,
        "feedback",
        *(feedback(name, received_at=111 + place, feedback_id="same") for place, name in enumerate("ab")),
    )
    assert {name: revision for name, (_, revision, _) in states(tmp_path).items()} == {"a": 1, "b": 0}
    assert report(tmp_path).conflicting == 1


def test_signals_become_numbers(tmp_path: Path) -> None:
    names = ("score", "outcome", "abstain", "comment", "kept", "rewritten", "unknown answer", "much")
    answer = '{"role":"assistant","content":"abcd"}'
    land(tmp_path, "turns", *[turn(name, answer="" if name == "unknown answer" else answer) for name in names])
    land(
        tmp_path,
        "feedback",
        feedback("score", "score", value=0.5),
        feedback("outcome", "outcome", value=-1.0),
        feedback("abstain", "abstain"),
        feedback("comment", "comment", text="hm"),
        feedback("kept", "edit", text="abcd"),
        feedback("rewritten", "edit", text="abxy"),
        feedback("unknown answer", "edit", text="abcd"),
        feedback("much", "score", value=1.0),
        feedback("much", "accept"),
    )
    rewards = RewardSettings(score_scale=0.8, outcome_scale=0.5)
    assert {name: row[2] for name, row in states(tmp_path, rewards=rewards).items()} == {
        "score": 0.4,
        "outcome": -0.5,
        "abstain": 0.0,
        "comment": None,
        "kept": 0.75,
        "rewritten": 0.25,
        "unknown answer": None,
        "much": 1.0,
    }


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        ("completions", '{"role":"assistant","content":"abcd"}'),
        ("messages", '{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"abcd"}]}'),
        ("responses", '{"output":[{"type":"message","content":[{"type":"output_text","text":"abcd"}]}]}'),
    ],
)
def test_an_edit_is_measured_against_the_answers_text_in_every_format(
    tmp_path: Path, dialect: str, answer: str
) -> None:
    land(tmp_path, "turns", turn("a", dialect=dialect, answer=answer))
    land(tmp_path, "feedback", feedback("a", "edit", text="abxy"))
    assert states(tmp_path)["a"][2] == 0.25


def test_the_digest_names_the_specification() -> None:
    assert specification_digest(RewardSettings()) == specification_digest(RewardSettings())
    assert specification_digest(RewardSettings()) != specification_digest(RewardSettings(accept=1.0))
