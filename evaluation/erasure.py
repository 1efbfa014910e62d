"""What an erasure leaves of evaluation sets, and of what was sampled with them.

Suites are files that people write. A question made of what a user said names where it is from: the id of its turn, or
the hash of its session or subject, in its `id` or its `meta`. By that it is found, and its line goes, from the suite
and from the samples of each evaluation that asked it. A report that quotes it goes whole; the verdict stays. The turns
that asked it are events like all others: their session goes to whoever asked for the erasure, before the question does.

Invariant: the suites come last, so that whoever was killed finds the same questions again.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from evaluation.stage import CHAMPION, REPORT, SAMPLES
from evaluation.suites import Question, load_suite
from ingest.contracts.erasure import TARGETS, erasure_digest
from ingest.contracts.files import write_atomically
from ingest.contracts.ids import ID


def asked_in(*, suites: Iterable[Path], goal: Mapping[str, str]) -> list[str]:
    """The names of the sessions in which questions were asked that `goal`, digest → target, covers. Raises
    `SuiteError`."""
    return sorted({question.session for path in suites for question in _covered(path, goal)})


def erase_questions(*, suites: Iterable[Path], folders: Iterable[Path], goal: Mapping[str, str]) -> int:
    """Takes what `goal` covers out of `suites`, and what was sampled with it out of all below `folders`; how many
    questions that were. Raises `SuiteError`."""
    found = {path: _covered(path, goal) for path in suites}
    texts = {question.text for questions in found.values() for question in questions}
    if texts:
        quoted = {html.escape(text) for text in texts}
        for path in [path for folder in folders for path in sorted(folder.rglob("*"))]:
            if path.name == SAMPLES:
                _keep(path, lambda line: json.loads(line)["question"] not in texts)
            elif path.name == CHAMPION or (path.name == REPORT and any(text in path.read_text() for text in quoted)):
                path.unlink()  # the champion's answers are drawn anew
    for path, questions in found.items():
        if questions:
            _keep(path, lambda line: not _covers(line, goal))
    return sum(map(len, found.values()))


def _covered(suite: Path, goal: Mapping[str, str]) -> list[Question]:
    return [question for question in load_suite(suite) if _covers(json.dumps(question.raw).encode(), goal)]


def _covers(line: bytes, goal: Mapping[str, str]) -> bool:
    ids = (match[0].decode() for match in ID.finditer(line))
    return any(erasure_digest(target, name) in goal for name in ids for target in TARGETS)


def _keep(path: Path, wanted: Callable[[bytes], bool]) -> None:
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    kept = [line for line in lines if wanted(line)]
    if len(kept) < len(lines):
        write_atomically(path, b"".join(line + b"\n" for line in kept))
