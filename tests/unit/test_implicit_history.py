"""Implicit signals of whole histories: what holds whatever lands when, and that the join finds all there is."""

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.attribution import Cut, joined
from ingest.config import AttributionSettings, ImplicitSettings, RewardSettings
from ingest.contracts.feedback import ImplicitRule
from tests.conversations import OPENING, calls, result, says, talk, user
from tests.lakes import as_arrow

TIMES = st.integers(0, 20).map(float)


@st.composite
def histories(draw: st.DrawFn) -> list[dict]:
    """A few conversations, most requests soon after an answer that they go on from; equal ones among them."""
    turns: list[dict] = []
    known: list[tuple[list[dict], int]] = [([user("a")], 0)]
    for number in range(draw(st.integers(2, 7))):
        messages, ended = draw(st.sampled_from(known))
        at = ended + draw(st.integers(-1, 4))
        ended = at + draw(st.integers(0, 5))
        answer = draw(st.sampled_from([says("x"), calls("{")]))
        changes = draw(st.sampled_from([{}, {}, {}, {}, {"finish": "abort"}, {"arm": "evaluation"}, {"policy": "q"}]))
        changes |= draw(st.sampled_from([{}, {}, {"session_id": "named"}, {"subject": "ben"}]))
        turns.append(talk(f"t{number}", messages, answer, at, finished_at=float(ended), **changes))
        words = draw(
            st.sampled_from([user("That's wrong."), user("That's wrong."), result("Error: no"), result("good")])
        )
        known.append(([*messages, answer, words], ended))
    return turns


def found(turns: list[dict], rules: AttributionSettings, cut: float, watermark: float) -> dict[tuple, tuple]:
    """(turn id, rule) → status, and (turn id,) → state, with every rule worth something."""
    worth = RewardSettings(implicit=ImplicitSettings(**dict.fromkeys(map(str, ImplicitRule), -0.25)))
    tables = {name: as_arrow(name, []) for name in ("feedback", "erasures")}
    tables["turns"] = as_arrow("turns", turns)
    with joined(tables, "p", rules, worth, Cut(cut, watermark), ()) as join:
        rows = join.execute("SELECT turn_id, kind, status, received_at FROM signal").fetchall()
        kept = join.execute("SELECT turn_id, state FROM attributed").fetchall()
    return {row[:2]: row[2:] for row in rows} | {(turn_id,): (state,) for turn_id, state in kept}


@settings(max_examples=25)
@given(
    turns=histories(),
    rules=st.builds(
        AttributionSettings, window_seconds=st.sampled_from([2.0, 6.0]), retry_seconds=st.sampled_from([0.0, 3.0, 9.0])
    ),
    cuts=st.tuples(TIMES, TIMES).map(sorted),
    behind=st.integers(0, 6),
    seed=st.randoms(use_true_random=False),
)
def test_a_signal_that_was_found_stays_whatever_lands_later(
    turns: list[dict], rules: AttributionSettings, cuts: list[float], behind: int, seed: Any
) -> None:
    """Early: all up to the watermark has landed, and some of what came after it. Late: everything."""
    early, late = cuts
    watermark = early - behind
    landed = [t for t in turns if t["finished_at"] <= watermark or seed.random() < 0.5]
    before = found(landed, rules, early, watermark)
    seed.shuffle(turns)
    after = found(turns, rules, late, late)
    for key, told in before.items():
        if len(key) == 2:
            assert key in after
            assert told[0] != "counted" or after[key][0] == "counted"
        elif told[0] == "silent":
            assert after[key][0] in ("silent", "superseded")


def slowly(turns: list[dict], rules: AttributionSettings, cut: float, watermark: float) -> set[tuple[str, str]]:
    """(turn id, rule), found one turn at a time: the docstring of `ingest.implicit`, read aloud."""
    known = [t for t in turns if t["finished_at"] <= cut and t["arm"] != "evaluation"]
    complete = min(cut, watermark)
    out = set()
    for child in known:
        at = -3 if child["answer"] else -2
        if len(child["prefix_hashes"]) < -at or child["finished_at"] > complete:
            continue
        parents = [
            p
            for p in known
            if p["policy"] == "p"
            and p is not child
            and p["prefix_hashes"][-1] == child["prefix_hashes"][at]
            and p["finished_at"] <= child["finished_at"]
        ]
        if parents:
            parent = min(parents, key=lambda p: (abs(child["started_at"] - p["finished_at"]), p["turn_id"]))
            last = json.loads(child["request"])["messages"][-1]["content"]
            out |= {(parent["turn_id"], "dissatisfied")} if "wrong" in last else set()
            out |= {(parent["turn_id"], "tool_error")} if "Error" in last else set()
            out.add((parent["turn_id"], f"followed at {child['finished_at']}"))
    for t in [t for t in known if t["policy"] == "p"]:
        name, end = t["turn_id"], t["finished_at"]
        same = [o for o in known if all(o[f] == t[f] for f in ("session_id", "key_id", "subject"))]
        closes = end + rules.window_seconds
        if any(
            o["policy"] == "p"
            and o["prompt_ids"] == t["prompt_ids"]
            and end < o["started_at"] <= end + rules.retry_seconds
            for o in same
        ):
            out.add((name, "regenerated"))
        if t["finish"] == "abort":
            out.add((name, "abandoned"))
            continue
        if "tool_calls" not in t["answer"]:
            continue
        if json.loads(t["answer"])["tool_calls"][0]["function"]["arguments"] == "{":
            out.add((name, "invalid_tool_call"))
        ends = [o["finished_at"] for o in same if o["started_at"] > end]
        ends += [float(w.split()[-1]) for n, w in out if n == name and w.startswith("followed at")]
        if closes <= complete and all(e > closes for e in ends):
            out.add((name, "abandoned"))
    return {pair for pair in out if not pair[1].startswith("followed")}


@settings(max_examples=25)
@given(
    turns=histories(),
    rules=st.builds(
        AttributionSettings, window_seconds=st.sampled_from([2.0, 6.0]), retry_seconds=st.sampled_from([0.0, 3.0, 9.0])
    ),
    cut=st.integers(0, 25).map(float),
    watermark=st.integers(0, 25).map(float),
)
def test_the_join_finds_what_the_slow_version_finds(
    turns: list[dict], rules: AttributionSettings, cut: float, watermark: float
) -> None:
    names = {key for key in found(turns, rules, cut, watermark) if len(key) == 2}
    assert names == slowly(turns, rules, cut, watermark)


def test_the_histories_have_every_rule() -> None:
    """So that the two tests above are about something."""
    rules = AttributionSettings(window_seconds=60, retry_seconds=30)
    seen: set[str] = set()
    said = [*OPENING, calls("{"), result("Error: no"), says("x"), user("That's wrong.")]
    turns = [
        talk(f"t{at}", said[:length], says("x") if length != 1 else calls("{"), at)
        for at, length in zip(itertools.count(), (1, 3, 5), strict=False)
    ]
    for row in [*turns, talk("left", OPENING, says("x"), 30, finish="abort")]:
        seen |= {rule for _, rule in slowly([*turns, row], rules, 100, 100)}
    assert seen >= {"dissatisfied", "tool_error", "invalid_tool_call", "abandoned"}
