"""Attribution: one state a turn, whatever the order; the join against a slow obvious version of itself."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.attribution import AttributionReport, Cut, Rate, attribute, attributed, joined
from ingest.config import AttributionSettings, RewardSettings
from ingest.contracts.erasure import erasure_digest
from ingest.explain import Contribution, explain
from ingest.rewards import specification_digest
from tests.lakes import as_arrow, feedback, land, turn
from tests.slow_attribution import attribute_slowly

SETTINGS = AttributionSettings(window_seconds=60)
REWARDS = RewardSettings()


def report(lake: Path, now: float = 1000.0, **options: Any) -> AttributionReport:
    return attribute(
        lake=lake,
        policy="p",
        settings=options.pop("settings", SETTINGS),
        rewards=options.pop("rewards", REWARDS),
        now=now,
        watermark=options.pop("watermark", now),
        used_datasets=lake / "none",
    )


def states(lake: Path, now: float = 1000.0, **options: Any) -> dict[str, tuple[str, int, float | None]]:
    """Turn id → state, revision, reward."""
    cut = Cut(now, options.pop("watermark", now))
    rules, rewards = options.pop("settings", SETTINGS), options.pop("rewards", REWARDS)
    with attributed(lake, "p", rules, rewards, cut, ()) as join:
        rows = join.execute("SELECT turn_id, state, revision, reward FROM attributed").fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def told_of(lake: Path, turn_id: str) -> tuple[Contribution, ...]:
    rules = {"p": (SETTINGS, REWARDS)}
    return explain(lake, turn_id, rules=rules, datasets=lake / "none", now=1000, watermark=1000).signals


def test_an_empty_lake_has_no_turns(tmp_path: Path) -> None:
    assert report(tmp_path).counts == dict.fromkeys(("open", "settled", "silent", "censored", "superseded"), 0)


def test_other_policies_are_not_counted(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"), turn("b", policy="q"))
    assert set(states(tmp_path)) == {"a"}


def test_a_turn_is_silent_only_after_window_and_watermark(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    assert states(tmp_path, now=159)["a"] == ("open", 0, None)
    assert states(tmp_path, now=500, watermark=159)["a"][0] == "open"
    assert states(tmp_path, now=500, watermark=160)["a"] == ("silent", 0, None)


def test_feedback_settles_its_turn_even_when_it_came_first(tmp_path: Path) -> None:
    land(tmp_path, "feedback", feedback("a", received_at=90))
    assert states(tmp_path) == {}
    land(tmp_path, "turns", turn("a"))
    assert states(tmp_path)["a"] == ("settled", 1, 0.75)


def test_a_turn_waits_for_a_revision_as_long_as_it_is_told(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    land(tmp_path, "feedback", feedback("a", received_at=110))
    patient = AttributionSettings(window_seconds=60, settle_seconds=20)
    assert states(tmp_path, now=129, settings=patient)["a"][0] == "open"
    assert states(tmp_path, now=130, settings=patient)["a"][0] == "settled"


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


def test_only_the_turns_own_key_or_a_trusted_one_may_speak(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    land(tmp_path, "feedback", feedback("a", key_id="stranger"))
    assert states(tmp_path)["a"] == ("silent", 0, None)
    trusting = AttributionSettings(window_seconds=60, trusted_keys=("stranger",))
    assert states(tmp_path, settings=trusting)["a"] == ("settled", 1, 0.75)


def test_a_sample_answers_for_itself(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a", sample=0), turn("a", sample=1))
    land(tmp_path, "feedback", feedback("a", sample=1))
    counts = report(tmp_path).counts
    assert (counts["settled"], counts["silent"]) == (1, 1)


def test_session_feedback_reaches_the_turns_that_had_begun(tmp_path: Path) -> None:
    turns = [turn(name, session_id="s", finished_at=at) for name, at in (("a", 100.0), ("b", 110.0), ("c", 130.0))]
    land(tmp_path, "turns", *turns, turn("other"))
    land(tmp_path, "feedback", feedback("s", "outcome", target="session", value=0.5, received_at=120))
    found = states(tmp_path)
    assert found["a"] == found["b"] == ("settled", 1, 0.5)
    assert found["c"][0] == found["other"][0] == "silent"


def test_a_session_that_nobody_named_is_reached_by_any_of_its_turns(tmp_path: Path) -> None:
    def rewards() -> dict[tuple[str, int], float | None]:
        with attributed(tmp_path, "p", SETTINGS, REWARDS, Cut(1000.0, 1000.0), ()) as join:
            rows = join.execute("SELECT turn_id, sample, reward FROM attributed").fetchall()
        return {(turn_id, sample): reward for turn_id, sample, reward in rows}

    turns = [turn(name, session_id="s", subject="u", finished_at=at) for name, at in (("a", 100.0), ("b", 110.0))]
    others = [turn("b", sample=1, session_id="r", subject="v"), turn("other", policy="q", session_id="r", subject="v")]
    land(tmp_path, "turns", *turns, *others)
    said = [feedback(*what, value=0.5, target="session_of_turn") for what in (("b", "outcome"), ("unknown", "outcome"))]
    land(tmp_path, "feedback", *said)
    assert rewards() == {("a", 0): 0.5, ("b", 0): 0.5, ("b", 1): None}
    by_name = feedback("s", "outcome", target="session", value=-0.5, received_at=120)
    land(tmp_path, "feedback", by_name)
    assert rewards() == {("a", 0): -0.5, ("b", 0): -0.5, ("b", 1): None}
    land(tmp_path, "feedback", feedback("other", "outcome", value=1.0, target="session_of_turn"))
    assert rewards()["b", 1] == 1.0


def test_of_a_session_that_named_itself_one_conversation_is_meant(tmp_path: Path) -> None:
    """Few-shot examples are the first assistant message of everybody: all are one session by its name."""
    asked = {"a1": "aA", "a2": "AcC", "b1": "bB", "again": "AcD"}

    def of_all(name: str, hashes: str, answer: str = "{}") -> dict:
        return turn(name, session_id="few", subject="u", prefix_hashes=["few", *hashes], answer=answer)

    land(tmp_path, "turns", *(of_all(name, hashes) for name, hashes in asked.items()), of_all("failed", "b", answer=""))
    land(tmp_path, "feedback", feedback("a2", "outcome", value=0.5, target="session_of_turn"))
    found = states(tmp_path)
    assert {name for name, (_, signals, _) in found.items() if signals} == {"a1", "a2"}
    land(tmp_path, "feedback", feedback("a1", "outcome", value=-0.5, target="session_of_turn", received_at=120))
    assert {name for name, (_, _, reward) in states(tmp_path).items() if reward == -0.5} == {"a1", "a2", "again"}


def test_two_peoples_sessions_of_one_name_are_apart(tmp_path: Path) -> None:
    turns = [turn(name, session_id="1", subject=subject) for name, subject in (("a", "u"), ("b", "v"), ("c", "u"))]
    land(tmp_path, "turns", *turns)
    land(tmp_path, "feedback", feedback("a", "outcome", value=0.5, target="session_of_turn"))
    assert {name for name, (_, signals, _) in states(tmp_path).items() if signals} == {"a", "c"}


@pytest.mark.parametrize(
    "change",
    [
        {"finish": "abort"},
        {"finish": "error"},
        {"finish": "engine_lost"},
        {"arm": "evaluation"},
        {"trainable": False, "untrainable_reason": "opted out"},
    ],
)
def test_what_nobody_could_judge_is_censored(tmp_path: Path, change: dict) -> None:
    land(tmp_path, "turns", turn("a", **change))
    land(tmp_path, "feedback", feedback("a"))
    assert states(tmp_path)["a"][0] == "censored"
    assert report(tmp_path).ready == 0


def test_an_erased_turn_is_censored_and_an_erased_subject_unheard(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a", subject="gone"), turn("b", session_id="gone"), turn("c"))
    land(tmp_path, "feedback", feedback("a"), feedback("b"), feedback("c", subject="gone"))
    for target in ("subject", "session"):
        erasure = {
            "erasure_id": target,
            "target": target,
            "digest": erasure_digest(target, "gone"),
            "requested_at": 0.0,
        }
        land(tmp_path, "erasures", erasure | {"spool_id": "s", "sequence": 1, "landed_at": 0.0})
    found = states(tmp_path)
    assert (found["a"][0], found["b"][0], found["c"][0]) == ("censored", "censored", "silent")


def test_a_retry_supersedes_what_nobody_judged(tmp_path: Path) -> None:
    same = {"session_id": "s", "subject": "u"}
    land(
        tmp_path,
        "turns",
        turn("first", **same),
        turn("second", finished_at=110.0, **same),
        turn("judged", session_id="t", subject="u"),
        turn("judged again", session_id="t", subject="u", finished_at=110.0),
        turn("other prompt", finished_at=90.0, prompt=[9], **same),
        turn("other subject", finished_at=90.0, session_id="s", subject="v"),
    )
    land(tmp_path, "feedback", feedback("judged", "reject"))
    found = {name: state for name, (state, *_) in states(tmp_path).items()}
    assert found == {
        "first": "superseded",
        "second": "silent",
        "judged": "settled",
        "judged again": "silent",
        "other prompt": "silent",
        "other subject": "silent",
    }


def test_only_trainable_fresh_turns_are_ready(tmp_path: Path) -> None:
    turns = [
        turn("ready", finished_at=1000.0, version="v3"),
        turn("greedy", finished_at=1000.0, version="v3", trainable=False, untrainable_reason="greedy"),
        turn("empty", finished_at=1000.0, version="v3", output=[], logprobs=[]),
        turn("old", finished_at=500.0, version="v2"),
        turn("stale", finished_at=990.0, version="v1"),
    ]
    turns[2]["weight_versions"] = []
    land(tmp_path, "turns", *turns, turn("later v2", finished_at=995.0, version="v2"))
    land(tmp_path, "feedback", *[feedback(t["turn_id"], received_at=t["finished_at"]) for t in turns])
    rules = AttributionSettings(fresh_seconds=100, fresh_versions=1)
    with attributed(tmp_path, "p", rules, REWARDS, Cut(1000, 1000), ()) as join:
        ready = join.execute("SELECT turn_id FROM attributed WHERE ready").fetchall()
        ages = join.execute("SELECT version, age FROM version_age ORDER BY age").fetchall()
    assert ready == [("ready",)]
    assert ages == [("v3", 0), ("v2", 1), ("v1", 2)]


def test_what_can_change_no_more_is_looked_at_as_long_as_history_says(tmp_path: Path) -> None:
    """An open turn, however old, stays; so does a fresh one; the watermark decides what is open."""
    land(tmp_path, "turns", *[turn(str(at), finished_at=float(at)) for at in (100, 850, 900, 970)])
    land(tmp_path, "feedback", *[feedback(str(at), received_at=at + 1.0) for at in (100, 900)])
    rules = AttributionSettings(window_seconds=60, fresh_seconds=100, history_seconds=30)
    assert set(states(tmp_path, settings=rules)) == {"900", "970"}
    assert set(states(tmp_path, settings=rules, watermark=930)) == {"850", "900", "970"}
    assert set(states(tmp_path, settings=AttributionSettings(window_seconds=60, fresh_seconds=100))) == {
        *("100", "850", "900", "970")
    }
    assert report(tmp_path, settings=rules).counts["settled"] == 1


def test_what_memory_cannot_hold_goes_to_the_scratch_folder_and_leaves_nothing(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with attributed(tmp_path, "p", SETTINGS, REWARDS, Cut(1000, 1000), (), scratch) as join:
        ((folder, memory),) = join.execute(
            "SELECT current_setting('temp_directory'), current_setting('memory_limit')"
        ).fetchall()
        assert (Path(folder).parent, memory) == (scratch, "2.0 GiB")
    assert list(scratch.iterdir()) == []


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


@pytest.mark.parametrize(
    ("rule", "segment"), [("key", "k"), ("none", ""), ("metadata:kind", "howto"), ("metadata:absent", "")]
)
def test_the_segment_follows_its_rule(tmp_path: Path, rule: str, segment: str) -> None:
    land(tmp_path, "turns", turn("a", request='{"metadata":{"kind":"howto"}}'))
    (rate,) = report(tmp_path, rewards=RewardSettings(segment=rule)).rates
    assert rate.segment == segment


def test_response_rates_by_arm_version_and_segment(tmp_path: Path) -> None:
    land(
        tmp_path, "turns", *[turn(str(i), version="v2" if i > 2 else "v1") for i in range(5)], turn("x", finish="abort")
    )
    land(tmp_path, "feedback", feedback("0"), feedback("1", "reject"), feedback("3"))
    assert report(tmp_path, now=150).rates == (
        Rate(arm="champion", version="v1", segment="k", turns=3, open=1, answered=2, positive=1),
        Rate(arm="champion", version="v2", segment="k", turns=2, open=1, answered=1, positive=1),
    )


def test_the_digest_names_the_specification() -> None:
    assert specification_digest(RewardSettings()) == specification_digest(RewardSettings())
    assert specification_digest(RewardSettings()) != specification_digest(RewardSettings(accept=1.0))


TIMES = st.integers(0, 12).map(float)
PEOPLE = st.sampled_from(["u", "v", ""])
KEYS = st.sampled_from(["k", "l", "trusted"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict], list[dict], set[tuple[str, str]]]:
    turns = []
    for number in range(draw(st.integers(1, 5))):
        ended = draw(TIMES)
        change = draw(st.sampled_from([{}, {}, {}, {"finish": "abort"}, {"arm": "evaluation"}, {"trainable": False}]))
        turns.append(
            turn(
                f"t{number // 2}",
                sample=number % 2,
                session_id=draw(st.sampled_from(["s", "r"])),
                prefix_hashes=draw(st.permutations("srxy"))[: draw(st.integers(1, 4))],
                answer=draw(st.sampled_from(["", '{"content":"y"}'])),
                subject=draw(PEOPLE),
                key_id=draw(st.sampled_from(["k", "l"])),
                prompt=draw(st.sampled_from([[1], [2]])),
                started_at=ended - draw(st.integers(0, 2)),
                finished_at=ended,
                **change,
            )
        )
    said = []
    for number in range(draw(st.integers(0, 6))):
        target = draw(st.sampled_from(["turn", "session", "session_of_turn"]))
        on_turn = target != "session"
        said.append(
            feedback(
                draw(st.sampled_from(["t0", "t1", "t2"] if on_turn else ["s", "r"])),
                draw(st.sampled_from(["accept", "reject", "score", "comment", "abstain"])),
                target=target,
                sample=draw(st.integers(0, 1)) if on_turn else 0,
                value=draw(st.sampled_from([-0.5, 0.125])),
                source=draw(st.sampled_from(["user", "application"])),
                key_id=draw(KEYS),
                subject=draw(PEOPLE),
                feedback_id=draw(st.sampled_from(["f", f"f{number}"])),
                received_at=draw(TIMES),
                occurred_at=draw(TIMES),
            )
        )
    erased = draw(st.sampled_from([set(), set(), set(), {("subject", "v")}, {("session", "r")}]))
    return turns, said, erased


@settings(max_examples=40)
@given(
    history=histories(),
    rules=st.builds(
        AttributionSettings,
        window_seconds=st.sampled_from([1.0, 5.0]),
        settle_seconds=st.sampled_from([0.0, 2.0]),
        retry_seconds=st.sampled_from([0.0, 3.0]),
        fresh_seconds=st.sampled_from([4.0, 100.0]),
        trusted_keys=st.sampled_from([(), ("trusted",)]),
    ),
    cut=TIMES,
    watermark=TIMES,
    seed=st.randoms(use_true_random=False),
)
def test_the_join_equals_the_slow_version_in_any_order(
    history: Any, rules: AttributionSettings, cut: float, watermark: float, seed: Any
) -> None:
    turns, said, erased = history
    used = {("t0", 1)}
    expected = attribute_slowly(turns, said, erased, used, rules, REWARDS, cut, watermark)
    seed.shuffle(turns)
    seed.shuffle(said)
    tables = {
        "turns": as_arrow("turns", turns),
        "feedback": as_arrow("feedback", said),
        "erasures": as_arrow("erasures", [{"target": t, "digest": erasure_digest(t, i)} for t, i in erased]),
    }
    with joined(tables, "p", rules, REWARDS, Cut(cut, watermark), used) as join:
        rows = join.execute("SELECT turn_id, sample, state, revision, reward, ready FROM attributed").fetchall()
    assert len(rows) == len(expected)
    assert {(row[0], row[1]): row[2:] for row in rows} == expected
