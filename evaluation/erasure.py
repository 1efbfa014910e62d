"""What an erasure leaves of evaluation sets, and of what was sampled with them.

Suites are files that people write. A question made of what a user said names where it is from: the id of its turn, or
the hash of its session or subject, in its `id` or its `meta`. By that it is found, and its line goes, from the suite
and from the samples of each evaluation that asked it. A report that quotes it goes whole; the verdict stays.

Invariant: the suites come last, so that whoever was killed finds the same questions again.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from evaluation.stage import CHAMPION, REPORT, SAMPLES
from evaluation.suites import load_suite
from ingest.contracts.erasure import TARGETS, erasure_digest
from ingest.contracts.files import write_atomically
from ingest.contracts.ids import ID


def erase_questions(*, suites: Iterable[Path], folders: Iterable[Path], goal: Mapping[str, str]) -> int:
    """Takes what `goal`, digest → target, covers out of `suites`, and what was sampled with it out of all below
    `folders`; how many questions that were. Raises `SuiteError`."""

    def covered(line: bytes) -> bool:
        ids = (match[0].decode() for match in ID.finditer(line))
        return any(erasure_digest(target, name) in goal for name in ids for target in TARGETS)

    found = {path: [q for q in load_suite(path) if covered(json.dumps(q.raw).encode())] for path in suites}
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
            _keep(path, lambda line: not covered(line))
    return sum(map(len, found.values()))


def _keep(path: Path, wanted: Callable[[bytes], bool]) -> None:
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    kept = [line for line in lines if wanted(line)]
    if len(kept) < len(lines):
        write_atomically(path, b"".join(line + b"\n" for line in kept))
