"""The stage: sample both versions, compare, decide, and leave a folder that proves it.

`output/` gets samples.jsonl, report.html and, last and after fsync, verdict.json: no verdict.json, no evaluation.
The champion's answers may be drawn before the challenger is there (`sample_champion`), while an engine loads it; they
wait in champion.json. Killed anywhere and called again it goes on from there; called again after it finished, it
returns what it concluded, for a second look at the same question would be a second chance.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from evaluation.config import EvaluationSettings
from evaluation.errors import EvaluationError, SuiteError
from evaluation.guards import Anchor, compare, load_anchor, measure, save_anchor
from evaluation.report import Scored, render
from evaluation.sampling import Answer, Source, sample
from evaluation.statistics import paired, spend
from evaluation.suites import Question, Target, load_suite, load_target, part_of, suite_digest, value_of
from evaluation.verdict import decide
from ingest.contracts.files import read_manifest, write_atomically, write_manifest
from ingest.contracts.verdict import Guard, Verdict

VERDICT, SAMPLES, REPORT, CHAMPION = "verdict.json", "samples.jsonl", "report.html", "champion.json"

log = logging.getLogger(__name__)


class _Drawn(msgspec.Struct, frozen=True):
    """The champion's answers to one run's questions, in the suite's order."""

    run_id: str
    champion: str
    suite: str
    answers: list[list[Answer]]


def sample_champion(
    *,
    settings: EvaluationSettings,
    policy: str,
    run_id: str,
    champion: str,
    gateway: str,
    key: str,
    look: int,
    output: Path,
) -> None:
    """Draws the champion's answers for `evaluate`, once a run. Raises `EvaluationError` where they cannot be had."""
    source = Source(gateway, key, policy, settings.sampling)
    _champion_answers(source, _questions(settings, look), run_id, champion, output)


def _questions(settings: EvaluationSettings, look: int) -> tuple[Question, ...]:
    questions = part_of(load_suite(settings.suite), look, settings.parts)
    if len(questions) < settings.min_questions:
        raise SuiteError(
            f"a look at {settings.suite} asks {len(questions)} questions, min_questions is {settings.min_questions}: "
            f"add questions, or cut it into fewer parts than {settings.parts}"
        )
    return questions


def _champion_answers(
    source: Source, questions: tuple[Question, ...], run_id: str, champion: str, output: Path
) -> list[list[Answer]]:
    path, suite = output / CHAMPION, suite_digest(questions)
    if path.exists():
        drawn = msgspec.json.decode(path.read_bytes(), type=_Drawn)
        if (drawn.run_id, drawn.champion, drawn.suite) == (run_id, champion, suite):
            return drawn.answers
    answers = sample(questions, source, champion)
    write_atomically(path, msgspec.json.encode(_Drawn(run_id, champion, suite, answers)))
    return answers


def evaluate(
    *,
    settings: EvaluationSettings,
    policy: str,
    run_id: str,
    challenger: str,
    champion: str,
    gateway: str,
    key: str,
    look: int,
    holds: int,
    output: Path,
    anchors: Path | None = None,
    clock: Callable[[], float] = time.time,
) -> Verdict:
    """The verdict on version `challenger` against version `champion`, sampled through `gateway` (its base URL).

    `key` has the role `evaluation`; `look` counts the looks of the policy's life from 1; `holds` those before it that
    held this challenger's lineage; `anchors` is the folder of the policy's guard anchors (default: beside `output`).
    Raises `EvaluationError` when no verdict can be reached.
    """
    if (output / VERDICT).exists():
        verdict = read_manifest(output, Verdict, VERDICT)
        if (verdict.run_id, verdict.challenger, verdict.champion) == (run_id, challenger, champion):
            return verdict
        raise EvaluationError(f"{output} holds the verdict of run {verdict.run_id}: give each its own folder")
    questions = _questions(settings, look)
    target = load_target(settings.target) if settings.target else None

    def scored(answers: list[list[Answer]]) -> Scored:
        return Scored(answers, None if target is None else _values(target, questions, answers))

    source = Source(gateway, key, policy, settings.sampling)
    old = scored(_champion_answers(source, questions, run_id, champion, output))
    new = scored(sample(questions, source, challenger, evaluation_arm=True))
    anchor_folder = anchors if anchors is not None else output.parent
    guards = _guards(settings, questions, champion, old, new, anchor_folder)
    alpha = spend(settings.alpha, look, settings.spending)
    interval = paired(old.values, new.values, alpha) if old.values is not None and new.values is not None else None
    decision, reasons = decide(interval, guards, holds, settings.max_holds)
    verdict = Verdict(
        run_id=run_id,
        policy=policy,
        challenger=challenger,
        champion=champion,
        decision=decision,
        reasons=reasons,
        target=settings.target or "",
        champion_mean=interval.champion_mean if interval else 0.0,
        challenger_mean=interval.challenger_mean if interval else 0.0,
        difference=interval.difference if interval else 0.0,
        low=interval.low if interval else 0.0,
        high=interval.high if interval else 0.0,
        confidence=1 - alpha,
        questions=len(questions),
        samples=sum(len(row) for row in new.answers) + sum(len(row) for row in old.answers),
        look=look,
        guards=guards,
        created_at=clock(),
    )
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / SAMPLES, _lines(questions, old, new))
    write_atomically(output / REPORT, render(verdict, interval, questions, old, new).encode())
    write_manifest(output, verdict, VERDICT)
    (output / CHAMPION).unlink(missing_ok=True)
    log.info("%s: %s against %s: %s (%s)", policy, challenger, champion, decision, "; ".join(reasons))
    return verdict


def _values(target: Target, questions: tuple[Question, ...], answers: list[list[Answer]]) -> np.ndarray:
    return np.array(
        [[value_of(target, q, a.text, a.finish) for a in row] for q, row in zip(questions, answers, strict=True)]
    )


def _guards(
    settings: EvaluationSettings,
    questions: tuple[Question, ...],
    champion: str,
    old: Scored,
    new: Scored,
    anchors: Path,
) -> tuple[Guard, ...]:
    def measured(scored: Scored) -> dict[str, float]:
        return measure((q.text, a.text) for q, row in zip(questions, scored.answers, strict=True) for a in row)

    known, said = measured(old), measured(new)
    suite = suite_digest(questions)
    path = anchors / f"anchor-{suite[:12]}.json"
    anchor = load_anchor(path)
    if anchor is None:
        anchor = Anchor(champion, suite, known)
        save_anchor(path, anchor)
    return compare(known, said, settings.against_champion) + compare(
        anchor.values, said, settings.against_anchor, "@anchor"
    )


def _lines(questions: tuple[Question, ...], old: Scored, new: Scored) -> bytes:
    def side(scored: Scored, row: int) -> list[dict]:
        return [
            {
                "text": a.text,
                "finish": a.finish,
                "target": None if scored.values is None else float(scored.values[row, column]),
                "turn_id": a.turn_id,
            }
            for column, a in enumerate(scored.answers[row])
        ]

    lines = (
        {"id": q.id, "question": q.text, "champion": side(old, row), "challenger": side(new, row)}
        for row, q in enumerate(questions)
    )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
