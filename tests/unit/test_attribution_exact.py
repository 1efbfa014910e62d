"""The join against a slow obvious version of itself, whatever the order of events."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.attribution import Cut, joined
from ingest.config import AttributionSettings
from ingest.contracts.erasure import erasure_digest
from tests.attributions import REWARDS
from tests.lakes import as_arrow, feedback, turn
from tests.slow_attribution import attribute_slowly

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
