"""The states of a turn: which one it has, and since when."""

from pathlib import Path

import pytest

from ingest.attribution import Cut, attributed
from ingest.config import AttributionSettings
from ingest.contracts.erasure import erasure_digest
from tests.attributions import REWARDS, SETTINGS, report, states
from tests.lakes import feedback, land, turn


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
