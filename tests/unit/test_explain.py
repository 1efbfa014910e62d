"""A turn's reward explained: the same as the whole join says, from the turn's neighbourhood."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ingest.attribution import Cut, attributed
from ingest.config import AttributionSettings, DatasetSettings, ImplicitSettings, RewardSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import read_manifest, write_manifest
from ingest.datasets import CANDIDATE
from ingest.explain import Explanation, UnknownTurn, explain
from ingest.freeze import freeze
from pipelines.cli import app
from tests.conversations import OPENING, calls, result, says, talk, user
from tests.lakes import feedback, land, turn
from tests.unit.test_config import GOOD

RULES = AttributionSettings(window_seconds=60, retry_seconds=30)
REWARDS = RewardSettings(limit=0.5, implicit=ImplicitSettings(dissatisfied=-0.5, tool_error=-0.25, regenerated=-0.125))


def explained(lake: Path, turn_id: str, sample: int = 0) -> Explanation:
    known: Any = {"rules": {"p": (RULES, REWARDS)}, "datasets": lake / "datasets", "now": 1000.0, "watermark": 1000.0}
    return explain(lake, turn_id, sample, **known)


def test_it_is_what_the_whole_join_says_of_every_turn(tmp_path: Path) -> None:
    """Tools, complaints, retries, signals on turns and on sessions, one idempotency key for two turns."""
    failed = [*OPENING, calls(), result("Error: no such city")]
    land(
        tmp_path,
        "turns",
        talk("asked", OPENING, calls(), 100),
        talk("told", failed, says("It failed."), 105),
        talk("after", [*failed, says("It failed."), user("That's wrong.")], says("Yes."), 110, session_id="another"),
        talk("again", OPENING, says("Sun."), 120, session_id="named"),
        talk("and again", OPENING, says("Rain."), 125, session_id="named"),
        talk("of others", OPENING, says("Snow."), 100, subject="ben"),
        turn("far", session_id="s"),
    )
    land(
        tmp_path,
        "feedback",
        feedback("asked", "reject"),
        feedback("told", "outcome", value=0.5, target="session_of_turn"),
        feedback("named", "accept", target="session", received_at=130),
        feedback("told", feedback_id="same", received_at=112),
        feedback("far", feedback_id="same", received_at=113),
        feedback("told", key_id="stranger"),
        feedback("after", "accept", subject="ben"),
        feedback("far", "accept", received_at=900),
    )
    with attributed(tmp_path, "p", RULES, REWARDS, Cut(1000, 1000), ()) as join:
        states = join.execute("SELECT turn_id, state, revision, reward FROM attributed").fetchall()
        signals = join.execute("SELECT turn_id, feedback_id, target, status FROM signal").fetchall()
    assert {status for *_, status in signals} == {"counted", "conflicting", "unauthorised", "late"}
    for name, *rest in states:
        told = explained(tmp_path, name)
        assert [told.state, told.revision, told.reward] == rest
        assert sorted((s.feedback_id, s.target, s.status) for s in told.signals) == sorted(
            row[1:] for row in signals if row[0] == name
        )


def test_what_clipped_it_and_what_it_weighs_are_told(tmp_path: Path) -> None:
    land(tmp_path, "turns", *[turn(f"t{n}", subject="u") for n in range(32)])
    land(tmp_path, "feedback", *[feedback(f"t{n}") for n in range(32)])
    told = explained(tmp_path, "t3")
    assert (told.total, told.limit, told.reward) == (0.75, 0.5, 0.5)
    assert (told.dataset_id, told.weight) == (None, None)
    folder = tmp_path / "datasets"
    made: Any = {"settings": DatasetSettings(), "attribution": RULES, "rewards": REWARDS, "now": 1e3, "watermark": 1e3}
    freeze(lake=tmp_path, datasets=folder, policy="p", dataset_id="d", **made)
    write_manifest(folder / "p" / "d", read_manifest(folder / "p" / "d", DatasetManifest, CANDIDATE))
    told = explained(tmp_path, "t3")
    assert (told.dataset_id, told.weight) == ("d", 0.5)


def test_an_old_turn_is_explained_too(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a", finished_at=1.0))
    known: Any = {"rules": {"p": (RULES, REWARDS)}, "datasets": tmp_path, "now": 1e9, "watermark": 1e9}
    assert explain(tmp_path, "a", **known).state == "silent"


def test_a_turn_that_is_not_known_is_told(tmp_path: Path) -> None:
    land(tmp_path, "turns", turn("a"), turn("b", policy="q"))
    for name, sample, why in (("x", 0, "no turn x"), ("a", 1, "no sample 1"), ("b", 0, "policy 'q'")):
        with pytest.raises(UnknownTurn, match=why):
            explained(tmp_path, name, sample)


def test_the_command_shows_it_to_people_and_programs(tmp_path: Path) -> None:
    lake, config = tmp_path / "here" / "lake", tmp_path / "everloop.toml"
    land(lake, "turns", turn("a", policy="helper"))
    land(lake, "feedback", feedback("a", "score", value=0.25), feedback("a", "comment", text="hm"))
    config.write_text(GOOD)
    shown = CliRunner().invoke(app, ["rewards", "explain", "a", "--config", str(config)])
    assert shown.exit_code == 0, shown.output
    assert "of policy helper: settled" in shown.output
    assert "reward 0.25, revision 1" in shown.output
    assert "worthless" in shown.output
    told = CliRunner().invoke(app, ["rewards", "explain", "a", "--json", "--config", str(config)])
    assert [s["contribution"] for s in json.loads(told.output)["signals"]] == [0.25, 0.0]
    assert CliRunner().invoke(app, ["rewards", "explain", "x", "--config", str(config)]).exit_code != 0
