"""Turns and feedback in any number, as they stand in the lake: the same for the same seed.

Sessions of four turns on average, a third of them with tools; turns of 1,000 prompt and 256 output tokens, 12 kB with
their texts. One turn in thirty is asked again, three callers in a hundred leave early, two turns in a hundred are
greedy. Feedback is of every kind, some of it revised, sent twice, late, or by a key that may not.
"""

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.lake import FEEDBACK, SCHEMAS, TURNS, open_table

POLICY = "policy"
START = 1_800_000_000.0
"""Unix seconds: when the first session begins."""
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 256

_BATCH = 50_000
_DISTINCT = 64
"""Different long texts and arrays, which the rows refer to: generating costs little, and so does the disk."""
_WORDS = (
    *(
        "the",
        "a",
        "model",
        "answer",
        "file",
        "test",
        "city",
        "weather",
        "table",
        "please",
        "why",
        "how",
        "error",
        "number",
    ),
    *("value", "write", "read", "list", "order", "name"),
)
_COMPLAINTS = ("That's wrong.", "No, that is not what I asked for.", "It still doesn't work.")
_KINDS = ("accept", "reject", "score", "edit", "comment", "outcome", "abstain")

Row = dict[str, Any]


def write_lake(lake: Path, turns: int, signals: int, seconds: float = 86_400.0, seed: int = 1) -> float:
    """So many turns, spread over `seconds`, and signals about them. Returns when the last of them was received."""
    source = random.Random(seed)
    long = _LongColumns(source)
    last, told, written = START, 0, 0
    for rows in _batches(generate_turns(turns, seconds, source)):
        write_deltalake(open_table(lake, TURNS), long.added_to(_table(TURNS, rows)), mode="append")
        written += len(rows)
        number = round(signals * written / turns) - told
        said = [generate_feedback(source.choice(rows), told + place, source) for place in range(number)]
        write_deltalake(open_table(lake, FEEDBACK), _table(FEEDBACK, said), mode="append")
        told += number
        last = max(last, max(row["finished_at"] for row in rows), max((f["received_at"] for f in said), default=0.0))
    return last


def generate_turns(number: int, seconds: float, source: random.Random) -> Iterator[Row]:
    """Turns, session by session, without their long columns."""
    made = session = 0
    while made < number:
        session += 1
        clock = START + seconds * made / number
        of_all = {
            "schema": 1,
            "sample": 0,
            "policy": POLICY,
            "dialect": "chat",
            "key_id": f"key{session % 20}",
            "subject": _hash("subject", source.randrange(max(10, number // 20))),
            "session_id": _hash("session", session),
            "sampling": '{"temperature":1.0}',
            "engine_id": "engine",
            "arm": source.choices(("champion", "challenger", "evaluation"), (89, 10, 1))[0],
            "metadata": json.dumps({"kind": source.choice(("howto", "code", "chat"))}),
            "output_tokens": OUTPUT_TOKENS,
            "landed_at": clock,
        }
        tools, chain = source.random() < 0.33, [_hash("opening", session)]
        for place in range(min(1 + int(source.expovariate(1 / 3.5)), number - made)):
            made += 1
            ended = clock + source.uniform(0.5, 20)
            follows = None if place == 0 else chain[-1]
            again = place > 0 and source.random() < 0.03
            finish = source.choices(("tool_calls" if tools else "stop", "abort", "error"), (96, 3, 1))[0]
            greedy = source.random() < 0.02
            if not again:
                asked = made
                chain.append(_hash("prompt", made))
            yield of_all | {
                "turn_id": f"chatcmpl-{made:028x}",
                "prefix_hashes": [*chain[-40:], _hash("answer", made)],
                "weight_versions": [{"version": f"v{int((clock - START) / 7200)}", "start": 0, "end": OUTPUT_TOKENS}],
                "finish": finish,
                "started_at": clock,
                "finished_at": ended,
                "trainable": not greedy,
                "untrainable_reason": "greedy" if greedy else None,
                "prompt_digest": f"{asked:016d}".encode(),
                "answer_hash": _hash("answer", made),
                "parent_hash": follows,
                "calls": "valid" if tools and finish == "tool_calls" else None,
                "tail_said": None if follows is None or tools else _words(source),
                "tail_failed": None if follows is None else False,
                "tail_results": ["Error: exit 1" if source.random() < 0.1 else f"read {made}"] if tools else None,
                "spool_id": f"spool{made % 4}",
                "sequence": made,
            }
            chain.append(_hash("answer", made))
            clock = ended + source.uniform(1, 60)


def generate_feedback(turn: Row, number: int, source: random.Random) -> Row:
    """A signal about a turn, or about its session."""
    kind = source.choices(_KINDS, (52, 21, 10, 2, 5, 8, 2))[0]
    target = source.choice(("session", "session_of_turn")) if kind == "outcome" else "turn"
    late, stranger, twice = (source.random() < share for share in (0.03, 0.01, 0.02))
    received = turn["finished_at"] + (source.uniform(4000, 9000) if late else source.expovariate(1 / 300))
    return {
        "schema": 1,
        "feedback_id": f"feedback{max(0, number - 1) if twice else number}",
        "target": target,
        "target_id": turn["session_id"] if target == "session" else turn["turn_id"],
        "sample": 0,
        "kind": kind,
        "value": round(source.uniform(-1, 1), 3) if kind in ("score", "outcome") else None,
        "text": {"edit": _edited(turn, source), "comment": _words(source)}.get(kind),
        "source": "user" if kind != "outcome" else "application",
        "key_id": "key of a stranger" if stranger else turn["key_id"],
        "subject": turn["subject"],
        "occurred_at": received - 1,
        "received_at": received,
        "spool_id": "spool0",
        "sequence": 1_000_000_000 + number,
        "landed_at": received,
    }


class _LongColumns:
    """The texts and arrays of turns: of each a few, in turn."""

    def __init__(self, source: random.Random) -> None:
        words = [_answer(number) for number in range(_DISTINCT)]
        messages = [[{"role": "user", "content": " ".join([text] * 5)}] for text in words]
        ids = [[source.randrange(150_000) for _ in range(PROMPT_TOKENS)] for _ in range(_DISTINCT)]
        self._pools: dict[str, list] = {
            "prompt_ids": [pack_ids(prompt) for prompt in ids],
            "output_ids": [pack_ids(prompt[:OUTPUT_TOKENS]) for prompt in ids],
            "logprobs": [pack_logprobs([source.uniform(-3, 0) for _ in range(OUTPUT_TOKENS)]) for _ in ids],
            "request": [json.dumps({"messages": each}) for each in messages],
            "answer": [json.dumps({"role": "assistant", "content": text}) for text in words],
        }

    def added_to(self, turns: pa.Table) -> pa.Table:
        """The turns with those of the long columns that the lake has."""
        place = pa.array([number % _DISTINCT for number in turns["sequence"].to_pylist()])
        for name, pool in self._pools.items():
            if (at := turns.schema.get_field_index(name)) >= 0:
                turns = turns.set_column(at, turns.field(at), pa.array(pool, turns.field(at).type).take(place))
        return turns


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _table(name: str, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS[name])


def _words(source: random.Random) -> str:
    if source.random() < 0.05:
        return source.choice(_COMPLAINTS)
    return " ".join(source.choices(_WORDS, k=12))


@cache
def _answer(number: int) -> str:
    return " ".join(random.Random(number).choices(_WORDS, k=150))


def _edited(turn: Row, source: random.Random) -> str:
    """What the answer says, with a few neighbouring words replaced."""
    words = _answer(turn["sequence"] % _DISTINCT).split()
    at = source.randrange(len(words))
    return " ".join([*words[:at], *source.choices(_WORDS, k=5), *words[at + source.randrange(8) :]])


def _hash(kind: str, number: int) -> str:
    return f"{kind[:4].encode().hex()}{number:024x}"
