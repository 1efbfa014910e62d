"""Suites: the questions that an evaluation asks, and the target that values an answer.

A suite is a JSONL file, one question a line: {"id", "messages": [...]} or {"id", "question", "system"}, and
"meta" for the target. Each look asks a part of it, in turn. A target is an import path `module:function`, called as
f(question, answer, finish) with the line as it was read; it returns a value from 0 to 1.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evaluation.errors import SuiteError
from ingest.contracts.errors import ContractError
from ingest.contracts.files import digest_of
from ingest.contracts.functions import load_function

Target = Callable[[dict, str, str], float]


@dataclass(frozen=True)
class Question:
    """One line of a suite: `raw` as it was read, `messages` as they are sent, `text` the last user message."""

    id: str
    messages: tuple[dict, ...]
    text: str
    raw: dict

    @property
    def session(self) -> str:
        """The name of the session in which evaluations ask it: an erasure of the question finds its turns by that."""
        return f"evaluation-{digest_of(self.messages)}"


def _question(raw: object, where: str) -> Question:
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str | int):
        raise SuiteError(f"{where}: a question is an object with an id")
    if "messages" in raw:
        messages = raw["messages"]
    elif "question" in raw:
        system = [{"role": "system", "content": raw["system"]}] if raw.get("system") else []
        messages = [*system, {"role": "user", "content": raw["question"]}]
    else:
        raise SuiteError(f"{where}: a question has `messages`, or `question` with `system`")
    users = [m["content"] for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    if not users or not isinstance(users[-1], str):
        raise SuiteError(f"{where}: there is no user message with text")
    return Question(str(raw["id"]), tuple(messages), users[-1], raw)


def load_suite(path: Path) -> tuple[Question, ...]:
    """The questions of a suite, in the file's order; raises `SuiteError` naming the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise SuiteError(f"the suite {path} cannot be read ({error.strerror}): set `suite` to a JSONL file") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except ValueError as error:
            raise SuiteError(f"{path}:{number}: not JSON ({error})") from error
        questions.append(_question(raw, f"{path}:{number}"))
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise SuiteError(f"{path}: the id {question.id} is there twice; the pairing needs unique ids")
        seen.add(question.id)
    return tuple(questions)


def part_of(questions: tuple[Question, ...], look: int, parts: int) -> tuple[Question, ...]:
    """The questions whose turn it is at look number `look` (from 1): one of `parts` fixed, equal parts of a suite.

    Decisions that rest on the same questions again and again would learn them by heart, as training would.
    """
    shuffled = sorted((question.id for question in questions), key=digest_of)
    turn = set(shuffled[(look - 1) % parts :: parts])
    return tuple(question for question in questions if question.id in turn)


def suite_digest(questions: tuple[Question, ...]) -> str:
    """Names a suite by its content, whatever file it came from."""
    return digest_of([q.raw for q in questions])


def load_target(path: str) -> Target:
    """The function at `module:function`; raises `SuiteError` when there is none."""
    try:
        return load_function(path)
    except ContractError as error:
        raise SuiteError(f"the target {path!r} {error}: write `module:function`") from error


def value_of(target: Target, question: Question, answer: str, finish: str) -> float:
    """The target's value of one answer, checked to be in [0, 1]."""
    value = float(target(question.raw, answer, finish))
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise SuiteError(f"the target gave {value} on question {question.id}: it must be from 0 to 1")
    return value
