"""An erasure takes the questions that name what it covers, and what evaluations wrote of them."""

import html
import json
from pathlib import Path

import pytest

from evaluation import erasure
from evaluation.erasure import erase_questions
from ingest.contracts.erasure import erasure_digest

TURN, OTHER, SUBJECT = f"chatcmpl-{'a' * 32}", f"chatcmpl-{'b' * 32}", "c" * 32
GOAL = {erasure_digest("turn", TURN): "turn", erasure_digest("subject", SUBJECT): "subject"}
QUESTIONS = [
    {"id": TURN, "question": "What did <Anna> say?"},
    {"id": "q2", "question": "Who was it?", "meta": {"of": [{"subject": SUBJECT}]}},
    {"id": "q3", "question": "How do I pay?", "meta": {"turn": OTHER}},
]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(question) for question in QUESTIONS))
    for name in ("checkpoints/p/c1", "mlflow/artifacts/1/ab/artifacts"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        lines = [json.dumps({"id": q["id"], "question": q["question"], "champion": []}) for q in QUESTIONS]
        (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "report.html").write_text(f"<td>{html.escape(str(QUESTIONS[0]['question']))}</td>")
        (folder / "champion.json").write_text("{}")
        (folder / "verdict.json").write_text("{}")
    (tmp_path / "checkpoints" / "report.html").write_text("of another question")
    return path


def left(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def erase(suite: Path) -> int:
    root = suite.parent
    return erase_questions(suites=[suite], folders=[root / "checkpoints", root / "mlflow"], goal=GOAL)


def test_questions_go_with_their_samples_and_reports_and_the_others_stay(suite: Path) -> None:
    assert erase(suite) == 2
    found = left(suite.parent)
    assert [json.loads(line) for line in found["questions.jsonl"].splitlines()] == QUESTIONS[2:]
    for name in ("checkpoints/p/c1", "mlflow/artifacts/1/ab/artifacts"):
        assert [json.loads(line)["id"] for line in found[f"{name}/samples.jsonl"].splitlines()] == ["q3"]
    assert [name for name in found if name.endswith((".html", "champion.json"))] == ["checkpoints/report.html"]
    assert sum(name.endswith("verdict.json") for name in found) == 2
    assert erase(suite) == 0
    assert left(suite.parent) == found


def test_killed_before_the_suite_is_written_it_finds_the_same_again(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = erasure.write_atomically

    def killed(path: Path, data: bytes) -> None:
        if path == suite:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(erasure, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        erase(suite)
    monkeypatch.setattr(erasure, "write_atomically", real)
    assert erase(suite) == 2
