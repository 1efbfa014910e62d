"""Whose turns a signal speaks of: of turns, samples and sessions, and who may speak."""

from pathlib import Path

from ingest.attribution import Cut, attributed
from ingest.config import AttributionSettings
from tests.attributions import REWARDS, SETTINGS, report, states
from tests.lakes import feedback, land, turn


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
