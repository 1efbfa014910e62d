"""Implicit signals: each rule on a small lake."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import dissatisfaction
from ingest.attribution import Cut, RuleRate, attribute, attributed
from ingest.config import AttributionSettings, ImplicitSettings, RewardSettings
from ingest.contracts.erasure import erasure_digest
from ingest.dissatisfaction import complains
from ingest.explain import explain
from ingest.implicit import ClassifierError, identify, is_error
from ingest.rewards import specification
from serving.gateway.dialects import DIALECTS
from serving.gateway.sessions import Conversation
from tests.conversations import OPENING, calls, result, says, talk, user
from tests.lakes import feedback, land, turn
from tests.unit.test_formats import ANSWERS, REQUESTS

RULES = AttributionSettings(window_seconds=60, retry_seconds=30)


def signals(lake: Path, cut: Cut = Cut(1000, 1000), **implicit: Any) -> dict[tuple[str, str], tuple[str, float]]:  # noqa: B008
    """(turn id, rule) → status, time of receipt."""
    with attributed(lake, "p", RULES, RewardSettings(implicit=ImplicitSettings(**implicit)), cut, ()) as join:
        rows = join.execute("SELECT turn_id, kind, source, status, received_at FROM signal").fetchall()
    assert all(source == f"implicit:{kind}" for _, kind, source, *_ in rows)
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[3:] for row in rows}


def states(lake: Path, cut: Cut = Cut(1000, 1000), **implicit: Any) -> dict[str, tuple[str, int, float | None]]:  # noqa: B008
    with attributed(lake, "p", RULES, RewardSettings(implicit=ImplicitSettings(**implicit)), cut, ()) as join:
        rows = join.execute("SELECT turn_id, state, revision, reward FROM attributed").fetchall()
    return {row[0]: row[1:] for row in rows}


def test_regenerated_is_what_superseded_knows(tmp_path: Path) -> None:
    asked = {"session_id": "named"}
    land(
        tmp_path,
        "turns",
        talk("first", OPENING, says("Sun."), 100, **asked),
        talk("second", OPENING, says("Rain."), 110, **asked),
        talk("much later", OPENING, says("Snow."), 200, **asked),
        talk("of another", OPENING, says("Fog."), 111, subject="ben", **asked),
    )
    assert signals(tmp_path) == {("first", "regenerated"): ("worthless", 111)}
    assert states(tmp_path)["first"] == ("superseded", 0, None)
    assert states(tmp_path, regenerated=-0.25)["first"] == ("settled", 1, -0.25)


def test_a_regeneration_that_was_answered_after_the_window_is_late(tmp_path: Path) -> None:
    again = talk("second", OPENING, says("Rain."), 110, session_id="named", finished_at=162.0)
    land(tmp_path, "turns", talk("first", OPENING, says("Sun."), 100, session_id="named"), again)
    assert signals(tmp_path, regenerated=-1)[("first", "regenerated")] == ("late", 162)
    assert states(tmp_path, regenerated=-1)["first"][0] == "superseded"


def test_who_left_before_the_end_abandoned(tmp_path: Path) -> None:
    land(tmp_path, "turns", talk("left", OPENING, says("Su"), 100, finish="abort"))
    assert signals(tmp_path, abandoned=-1) == {("left", "abandoned"): ("counted", 101)}
    assert states(tmp_path, abandoned=-1)["left"][0] == "censored"


def test_a_tool_that_nobody_answered_was_abandoned_once_the_window_has_passed(tmp_path: Path) -> None:
    land(tmp_path, "turns", talk("asked", OPENING, calls(), 100), talk("said", [user("Oslo?")], says("Snow."), 100))
    assert signals(tmp_path, Cut(160, 160), abandoned=-1) == {}
    assert signals(tmp_path, Cut(200, 160), abandoned=-1) == {}
    assert states(tmp_path, Cut(200, 160), abandoned=-1)["asked"][0] == "open"
    assert signals(tmp_path, Cut(200, 161), abandoned=-1) == {("asked", "abandoned"): ("counted", 161)}
    assert states(tmp_path, Cut(200, 161), abandoned=-1)["asked"] == ("settled", 1, -1.0)
    assert states(tmp_path)["asked"] == ("silent", 0, None)


@pytest.mark.parametrize(
    "follower",
    [
        talk("next", [*OPENING, calls(), result("sunny")], says("Sun."), 105),
        talk("next", [*OPENING, calls(), result("sunny")], says("Sun."), 105, session_id="another"),
        talk("next", [*OPENING, calls(), result("sunny")], says("Sun."), 105, policy="q"),
        talk("next", [user("something else")], says("Yes."), 105, session_id="named"),
    ],
)
def test_what_was_followed_in_time_was_not_abandoned(tmp_path: Path, follower: dict) -> None:
    land(tmp_path, "turns", talk("asked", OPENING, calls(), 100, session_id="named"), follower)
    assert ("asked", "abandoned") not in signals(tmp_path)


@pytest.mark.parametrize(
    "follower",
    [
        talk("next", [*OPENING, calls(), result("sunny")], says("Sun."), 161),  # answered after the window
        talk("next", [user("something else")], says("Yes."), 90, session_id="named"),
        talk("next", [user("something else")], says("Yes."), 105, session_id="named", subject="ben"),
        talk("next", [user("something else")], says("Yes."), 105, session_id="named", arm="evaluation"),
    ],
)
def test_what_does_not_follow_in_time_does_not_help(tmp_path: Path, follower: dict) -> None:
    land(tmp_path, "turns", talk("asked", OPENING, calls(), 100, session_id="named"), follower)
    assert ("asked", "abandoned") in signals(tmp_path)


def test_of_several_samples_one_that_was_followed_speaks_for_all(tmp_path: Path) -> None:
    both = [talk("asked", OPENING, calls(f'{{"city":"{c}"}}'), 100, sample=i) for i, c in enumerate(("Rome", "Oslo"))]
    next_request = [*OPENING, calls('{"city":"Oslo"}'), result("sunny")]
    land(tmp_path, "turns", *both, talk("next", next_request, says("Sun."), 105))
    assert signals(tmp_path) == {}


def test_a_complaint_is_about_the_answer_before_it(tmp_path: Path) -> None:
    said = [*OPENING, says("Sun.")]
    land(
        tmp_path,
        "turns",
        talk("first", OPENING, says("Sun."), 100),
        talk("second", [*said, user("No, that's wrong.")], says("Rain."), 110),
        talk("third", [*said, user("No, that's wrong."), says("Rain."), user("Thanks!")], says("Bye."), 120),
    )
    assert signals(tmp_path) == {("first", "dissatisfied"): ("worthless", 111)}
    assert states(tmp_path)["first"] == ("silent", 0, None)
    assert states(tmp_path, dissatisfied=-0.5)["first"] == ("settled", 1, -0.5)
    rules = {"p": (RULES, RewardSettings(implicit=ImplicitSettings(dissatisfied=-0.5)))}
    (told,) = explain(tmp_path, "first", rules=rules, datasets=tmp_path, now=1e3, watermark=1e3).signals
    assert (told.kind, told.source, told.value, told.contribution) == (
        "dissatisfied", "implicit:dissatisfied", 1.0, -0.5,
    )  # fmt: skip


def test_what_follows_is_heard_once_the_log_is_complete_up_to_there(tmp_path: Path) -> None:
    follower = talk("second", [*OPENING, says("Sun."), user("That's wrong.")], says("Rain."), 110)
    land(tmp_path, "turns", talk("first", OPENING, says("Sun."), 100), follower)
    assert signals(tmp_path, Cut(120, 110.5)) == {}
    assert set(signals(tmp_path, Cut(120, 111))) == {("first", "dissatisfied")}


def test_of_equal_answers_the_one_that_had_just_ended_is_meant(tmp_path: Path) -> None:
    twins = [talk(name, OPENING, says("Sun."), at) for name, at in (("early", 100), ("near", 140), ("later", 151))]
    land(tmp_path, "turns", *twins, talk("next", [*OPENING, says("Sun."), user("That's wrong.")], says("Oh."), 150))
    assert {key for key in signals(tmp_path) if key[1] == "dissatisfied"} == {("near", "dissatisfied")}


@pytest.mark.parametrize(
    ("answer", "invalid"),
    [
        (calls(), False),
        (calls('{"city":"[REDACTED:email]",}'), False),
        (calls('{"city":3}'), True),
        (calls("{}"), True),
        (calls(""), True),
        (calls('["Rome"]'), True),
        (calls('{"city":"Ro'), True),
        (calls(name="whether"), True),
        (says('I would use "tool_calls".'), False),
    ],
)
def test_calls_are_held_against_what_was_offered(tmp_path: Path, answer: dict, invalid: bool) -> None:
    land(tmp_path, "turns", talk("asked", OPENING, answer, 100))
    found = signals(tmp_path, Cut(110, 110), invalid_tool_call=-0.5)
    assert found == ({("asked", "invalid_tool_call"): ("counted", 101)} if invalid else {})


def test_a_tools_error_is_its_callers(tmp_path: Path) -> None:
    failed = [*OPENING, calls(), result("Error: no such city")]
    land(
        tmp_path,
        "turns",
        talk("asked", OPENING, calls(), 100),
        talk("told", failed, says("It failed."), 105),
        talk("after", [*failed, says("It failed."), user("Pity.")], says("Yes."), 110),
    )
    assert signals(tmp_path) == {("asked", "tool_error"): ("worthless", 106)}


@pytest.mark.parametrize("dialect", ANSWERS)
def test_every_format_is_linked_and_read(tmp_path: Path, dialect: str) -> None:
    """As its own part of the gateway reads the conversation, and as it is recorded."""
    (speaks,) = [d for d in DIALECTS.values() if d.name == dialect]
    opening = {"input" if dialect == "responses" else "messages": [user("Rome?")], "tools": REQUESTS[dialect]["tools"]}
    follower = json.loads(json.dumps(REQUESTS[dialect]).replace("And in Oslo?", "That's wrong."))
    rows = []
    for at, body, answer in ((100, opening, ANSWERS[dialect]), (110, follower, None)):
        messages = speaks.heard(json.loads(json.dumps(body)), ())
        said = None if answer is None else speaks.said(json.loads(json.dumps(answer)))
        session, hashes = Conversation(b"secret", "k", messages).close(said)
        row = turn(
            f"at {at}", dialect=dialect, session_id=session, prefix_hashes=hashes, started_at=at, finished_at=at + 1.0
        )
        rows.append(row | {"request": json.dumps(body), "answer": "" if answer is None else json.dumps(answer)})
    land(tmp_path, "turns", *rows)
    assert set(signals(tmp_path)) == {("at 100", "dissatisfied"), ("at 100", "tool_error")}
    broken = rows[0]["answer"].replace("city", "town"), rows[0]["answer"].replace("weather", "whether")
    land(tmp_path, "turns", *(rows[0] | {"turn_id": f"broken {n}", "answer": a} for n, a in enumerate(broken)))
    assert {name for name, rule in signals(tmp_path) if rule == "invalid_tool_call"} == {"broken 1"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Error: no", True),
        ("  Error", True),
        ("Errors: 0", False),
        ("no Error", False),
        ('{"error":"no"}', True),
        ('{"error":null,"rows":[]}', False),
        ('{"isError":true}', True),
        ("{error", False),
    ],
)
def test_the_convention_of_errors(text: str, error: bool) -> None:
    assert is_error(text, ImplicitSettings()) is error


def test_the_convention_can_be_set() -> None:
    own = ImplicitSettings(tool_error_prefixes=("Exit code: 1",), tool_error_keys=("failed",))
    assert is_error("Exit code: 1\nnot found", own)
    assert is_error('{"failed":1}', own)
    assert not is_error('Error: {"error":1}', own)


def test_nothing_is_read_of_who_opted_out_or_was_forgotten(tmp_path: Path) -> None:
    complaint = [*OPENING, says("Sun."), user("That's wrong.")]
    out = {"trainable": False, "untrainable_reason": "opted out"}
    land(
        tmp_path,
        "turns",
        talk("a", OPENING, says("Sun."), 100),
        talk("a2", complaint, says("Oh."), 105, **out),
        talk("b", OPENING, calls("{"), 100, subject="ben", **out),
        talk("c", OPENING, calls("{"), 100, subject="gone"),
        talk("d", OPENING, calls("{"), 100, subject="eve", arm="evaluation"),
        talk("e", OPENING, says("Sun."), 100, subject="eve"),
        talk("e2", complaint, says("Oh."), 105, subject="eve", session_id="gone"),
    )
    for target in ("subject", "session"):
        erasure = {
            "erasure_id": target,
            "target": target,
            "digest": erasure_digest(target, "gone"),
            "requested_at": 0.0,
        }
        land(tmp_path, "erasures", erasure | {"spool_id": "s", "sequence": 1, "landed_at": 0.0})
    assert signals(tmp_path) == {}


def test_what_was_said_outright_and_what_is_guessed_add_up(tmp_path: Path) -> None:
    land(
        tmp_path,
        "turns",
        talk("first", OPENING, says("Sun."), 100),
        talk("second", [*OPENING, says("Sun."), user("That's wrong.")], says("Rain."), 110),
        talk("other", [user("Oslo?")], says("Snow."), 110),
        talk("left", [user("Paris?")], says("Ra"), 110, finish="abort"),
    )
    land(tmp_path, "feedback", feedback("first"), feedback("second", "reject"))
    assert states(tmp_path)["first"] == ("settled", 1, 0.75)
    assert states(tmp_path, dissatisfied=-0.5)["first"] == ("settled", 2, 0.25)
    report = attribute(
        lake=tmp_path,
        policy="p",
        settings=RULES,
        rewards=RewardSettings(),
        now=1000,
        watermark=1000,
        used_datasets=tmp_path / "none",
    )
    cell = {"arm": "champion", "version": "base", "segment": "k", "turns": 4}
    assert report.implicit == (
        RuleRate(rule="abandoned", signals=1, answered=0, positive=0, **cell),
        RuleRate(rule="dissatisfied", signals=1, answered=1, positive=1, **cell),
    )
    assert (report.classifier.name, len(report.classifier.digest)) == ("ingest.dissatisfaction:complains", 64)


def unsure(text: str) -> float:
    return 0.4 if "?" in text else 0.5


def broken(text: str) -> float:
    return len(text)


def test_a_classifier_of_ones_own(tmp_path: Path) -> None:
    for name, words in (("a", "Hm?"), ("b", "Hm.")):
        first, second = [user(name)], [user(name), says("Sun."), user(words)]
        land(tmp_path, "turns", talk(name, first, says("Sun."), 100), talk(f"{name}2", second, says("Oh."), 110))
    assert set(signals(tmp_path, classifier=f"{__name__}:unsure")) == {("b", "dissatisfied")}
    with pytest.raises(Exception, match="gave 3") as raised:
        signals(tmp_path, classifier=f"{__name__}:broken")
    assert "Hm" not in str(raised.value)
    for missing in ("ingest.nothing:here", "ingest.dissatisfaction:nothing", "ingest.dissatisfaction:LOOKED_AT"):
        with pytest.raises(ClassifierError, match="classifier"):
            signals(tmp_path, classifier=missing)


def test_the_manifest_names_the_classifier_where_it_counts() -> None:
    assert "classifier_digest" not in specification(RewardSettings())["implicit"]
    counts = RewardSettings(implicit=ImplicitSettings(dissatisfied=-0.5))
    assert specification(counts)["implicit"]["classifier_digest"] == identify(counts.implicit).digest


FRAGMENTS = (
    *("That", " is", "'s", " not", "n't", "n’t", " wrong", " useless", " right", " what I", " asked", " does", " did"),
    *(
        " work",
        " still",
        " broken",
        "You",
        " are",
        " mistaken",
        " forgot",
        " made an error",
        " have",
        " read",
        "I said",
    ),
    *("No", ",", "!", " try", " again", "Please", " do it", " misunderstood", "x", " incorrect", " answer", " missed"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join))
def test_the_quick_look_misses_no_complaint(text: str) -> None:
    assert complains(text) == (dissatisfaction._PHRASES.search(text) is not None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("That's wrong.", True),
        ("this isn't what I asked for", True),
        ("It still doesn’t work", True),
        ("No, I meant the other one", True),
        ("You forgot the second part.", True),
        ("wrong", True),
        ("Please try again", True),
        ("No, thanks.", False),
        ("No problem! And what about Oslo?", False),
        ("Great, thank you", False),
        ("What is wrong with my code?", False),
        ("Now write a test for it", False),
        ("", False),
    ],
)
def test_the_default_classifier_knows_plain_complaints(text: str, complaint: bool) -> None:
    assert complains(text) is complaint
