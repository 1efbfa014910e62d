"""The join on Spark and on DuckDB: the same rows of the same lake, over generated cases."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.attribution import STATES, Cut, attributed
from ingest.config import AttributionSettings, ImplicitSettings, RewardSettings, WeightSettings
from ingest.contracts.erasure import erasure_digest
from ingest.contracts.feedback import ImplicitRule
from ingest.weights import choose
from tests.conversations import OPENING, calls, result, says, talk, user
from tests.lakes import feedback, land

pytestmark = pytest.mark.integration

CASES = 150
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""For few rows: what Spark does to be quick on many costs it more than the join does."""
TABLES = ("attributed", "signal", "turn", "implicit", "version_age", "propensity", "candidate", "chosen")
RULES = AttributionSettings(
    window_seconds=12, settle_seconds=2, retry_seconds=6, fresh_seconds=30, fresh_versions=1, trusted_keys=("trusted",)
)
CAPS = WeightSettings(subject_turns=1.5, key_turns=2.0, propensity_clip=1.25)
REWARDS = (
    RewardSettings(segment="metadata:kind", limit=0.7, score_scale=0.3, weights=CAPS),
    RewardSettings(
        segment="key", weights=CAPS, implicit=ImplicitSettings(**dict.fromkeys(map(str, ImplicitRule), -0.3))
    ),
)
MAX_TURNS = 25
"""Fewer than are ready."""
CUT = Cut(26.0, 22.0)


def turns_of(case: int, source: random.Random) -> Iterator[dict[str, Any]]:
    """A few conversations of a case, most requests soon after an answer that they go on from; equal ones among them."""
    pick = source.choice
    known: list[tuple[list[dict], float]] = [([user(f"case {case}")], 0.0)]
    for number in range(source.randint(1, 9)):
        messages, ended = pick(known)
        at = max(0.0, ended + source.randint(-1, 6))
        answer = pick([says("x"), says("Grüße 😀"), calls("{"), calls(), None])
        changes: dict[str, Any] = {
            "subject": f"{case} {pick(['anna', 'anna', 'ben', 'gone'])}",
            "key_id": f"k{case % 7}",
        }
        changes |= pick(
            [{}, {}, {}, {"finish": "abort"}, {"arm": "evaluation"}, {"policy": "q"}, {"arm": "challenger"}]
        )
        changes |= pick([{}, {}, {}, {"trainable": False, "untrainable_reason": pick(["greedy", "opted out"])}])
        changes |= pick([{}, {}, {"session_id": f"named {case}"}, {"subject": ""}, {"prompt_ids": b""}])
        row = talk(f"{case} t{number}", messages, answer, at, finished_at=at + pick([0.0, 0.5, 3.0]), **changes)
        request = json.loads(row["request"])
        if source.random() < 0.7:
            request["metadata"] = {"kind": pick(["howto", 1.0, None, "ü"]), "other": "x"}
        row |= {"request": json.dumps(request), "sample": pick([0, 0, 0, 1])}
        spans = [("v1", 0, 1), (pick(["v2", "v3"]), 1, 3)] if source.random() < 0.5 else [(pick(["v1", "v2"]), 0, 3)]
        row["weight_versions"] = [dict(zip(("version", "start", "end"), span, strict=True)) for span in spans]
        yield row | ({"output_ids": b"", "logprobs": b"", "weight_versions": []} if source.random() < 0.1 else {})
        words = pick(
            [user("That's wrong."), user("Thanks"), result("Error: no"), result('{"error":1}'), result("good")]
        )
        if answer is not None:
            known.append(([*messages, answer, words], row["finished_at"]))
    if source.random() < 0.3:
        yield talk(f"{case} opening", OPENING, says("Sun."), 5, subject=f"{case} anna")


def said_of(case: int, turns: list[dict], source: random.Random) -> Iterator[dict[str, Any]]:
    """Of every kind, on turns and on sessions, sent twice, revised, conflicting, late, or by somebody else."""
    pick = source.choice
    for number in range(source.randint(0, 8)):
        about = pick(turns)
        target = pick(["turn", "turn", "turn", "session", "session_of_turn"])
        kind = pick(["accept", "reject", "score", "outcome", "edit", "comment", "abstain"])
        said = feedback(
            about["session_id"] if target == "session" else about["turn_id"],
            kind,
            target=target,
            sample=about["sample"] if target != "session" else 0,
            value=pick([-0.5, 0.125, 1 / 3]) if kind in ("score", "outcome") else None,
            text=pick(["x", "", "Grüße 😀!", "x" * 40]) if kind in ("edit", "comment") else None,
            source=pick(["user", "application"]),
            key_id=pick([about["key_id"], about["key_id"], about["key_id"], "stranger", "trusted"]),
            subject=pick(["", about["subject"], f"{case} gone", "somebody"]),
            feedback_id=f"{case} f{source.randint(0, 4) if source.random() < 0.3 else 10 + number}",
            received_at=float(source.randint(0, 30)),
            occurred_at=float(source.randint(0, 3)),
        )
        yield said
        if source.random() < 0.2:  # sent again
            yield said | {
                "sequence": said["sequence"] + 1_000_000,
                "received_at": said["received_at"] + pick([0.0, 1.0]),
            }


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("lake"), random.Random(1)
    turns, said = [], []
    for case in range(CASES):
        turns += (mine := list(turns_of(case, source)))
        said += said_of(case, mine, source)
    land(folder, "turns", *turns)
    land(folder, "feedback", *said)
    place = {"spool_id": "s", "sequence": 1, "landed_at": 0.0, "requested_at": 0.0, "erasure_id": "e"}
    gone = [("subject", f"{case} gone") for case in range(CASES)] + [("session", turns[3]["session_id"])]
    land(folder, "erasures", *({"target": t, "digest": erasure_digest(t, name)} | place for t, name in gone))
    return folder


def rows(lake: Path, engine: Any, rewards: RewardSettings, scratch: Path) -> dict[str, Counter]:
    """Each table as what its rows are, whatever their order; those of a dataset and its weights too."""
    rules = RULES.model_copy(update={"engine": engine, "spark": SMALL})
    used = [("1 t0", 0), ("2 t0", 0)]
    with attributed(lake, "p", rules, rewards, CUT, used, scratch) as join:
        choose(join, rewards, MAX_TURNS)
        found = {}
        for table in TABLES:
            names = sorted(name for name, *_ in join.execute(f"DESCRIBE {table}").fetchall())
            wanted = ", ".join(f'"{name}"' for name in names)
            found[table] = Counter(map(repr, join.execute(f"SELECT {wanted} FROM {table}").fetchall()))
        return found


@pytest.mark.parametrize("rewards", REWARDS)
def test_both_engines_find_the_same(lake: Path, rewards: RewardSettings, tmp_path: Path) -> None:
    duckdb, spark = (rows(lake, engine, rewards, tmp_path) for engine in ("duckdb", "spark"))
    for table in TABLES:
        assert spark[table] - duckdb[table] == duckdb[table] - spark[table] == Counter(), table


def test_there_are_cases_of_every_kind(lake: Path, tmp_path: Path) -> None:
    """So that the test above is about something."""
    found = [rows(lake, "duckdb", rewards, tmp_path) for rewards in REWARDS]
    seen = " ".join(row for tables in found for table in ("attributed", "signal") for row in tables[table])
    statuses = {"counted", "revised", "duplicate", "conflicting", "unauthorised", "late", "worthless"}
    assert [word for word in {*STATES, *statuses, *map(str, ImplicitRule)} if f"'{word}'" not in seen] == []
    weights = {float(row.rpartition(" ")[2].rstrip(")")) for tables in found for row in tables["chosen"]}
    assert min(weights) < 1 / CAPS.propensity_clip < 1 < max(weights) == CAPS.propensity_clip
    assert all(tables["chosen"].total() == MAX_TURNS < tables["candidate"].total() for tables in found)
