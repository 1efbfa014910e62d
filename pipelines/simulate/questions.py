"""Question files: JSON lines, each with an id, the text, its kind, and what an answer must be about.

    {"id": "howto-007", "system": "Answer in one short sentence.", "question": "How can I stop hiccups?",
     "meta": {"kind": "howto", "topic": "hiccup|breath|water"}}

They are suites of the evaluation too: the gate reads the same lines.

The demo has three that share no question and no near-duplicate: what users ask, what the gate asks, and what
nobody asks before the last page of the report.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.errors import PipelineError
from pipelines.simulate.words import likeness

NEAR = 0.5
"""Two questions that share half of their content words, or more, count as near-duplicates."""


class QuestionsUnreadable(PipelineError):
    """A question file that is missing or broken: says which line, and what it lacks."""


def load_questions(path: Path) -> list[dict]:
    """The questions of `path`, in its order. Raises `QuestionsUnreadable` with the line that is wrong."""
    if not path.is_file():
        raise QuestionsUnreadable(f"there is no question file {path}; name an existing one")
    found = [_parse(line, path, number) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if line]
    if not found:
        raise QuestionsUnreadable(f"{path} has no question; write one JSON object a line")
    if len({q["id"] for q in found}) < len(found):
        raise QuestionsUnreadable(f"{path} uses a question id twice; ids must differ")
    return found


def near_duplicates(ones: Iterable[dict], others: Iterable[dict]) -> Iterator[tuple[str, str]]:
    """Pairs of texts, one of each side, that are the same question in other words."""
    texts = [other["question"] for other in others]
    return ((one["question"], text) for one in ones for text in texts if likeness(one["question"], text) >= NEAR)


def _parse(line: str, path: Path, number: int) -> dict:
    where = f"{path}, line {number}"
    try:
        question = json.loads(line)
        meta = question["meta"]
        if not all(
            isinstance(t, str) for t in (question["id"], question["system"], question["question"], meta["kind"])
        ):
            raise TypeError
        re.compile(meta["topic"])
    except json.JSONDecodeError as error:
        raise QuestionsUnreadable(f"{where}: not JSON ({error.msg})") from error
    except (KeyError, TypeError) as error:
        raise QuestionsUnreadable(
            f'{where}: needs "id", "system", "question", and "meta" with "kind" and "topic"'
        ) from error
    except re.error as error:
        raise QuestionsUnreadable(f"{where}: the topic is no regular expression ({error})") from error
    return question
