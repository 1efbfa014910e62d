"""What each guard sees, and the case that made them: a policy that learned to parrot the question."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from evaluation.config import GuardBounds
from evaluation.errors import SuiteError
from evaluation.guards import Anchor, compare, load_anchor, measure, save_anchor
from evaluation.measures import MEASURES
from evaluation.statistics import paired
from evaluation.suites import load_suite, load_target, part_of
from evaluation.verdict import decide
from ingest.contracts.errors import ContractError
from ingest.contracts.verdict import Decision

QUESTIONS = [
    ("What is the tallest animal?", "The giraffe is the tallest of all.", "The tallest animal is the tallest animal."),
    ("How do I reset my password?", "Click the forgot link on the sign-in page.", "You reset your password by reset."),
    ("How long should I boil an egg?", "Around seven minutes gives a firm yolk.", "You should boil an egg long."),
    ("Who wrote Hamlet?", "It is a play by Shakespeare.", "Hamlet is what wrote Hamlet."),
    ("How do I keep bread fresh?", "Store it in a paper bag at home.", "Keep bread fresh to keep bread fresh."),
    ("Which planet is closest to the sun?", "Mercury orbits nearest of them.", "The planet is closest to the sun."),
    ("Can I freeze cooked rice?", "Yes, it lasts for a month.", "You can freeze cooked rice."),
    ("How many days are in a leap year?", "There are 366 of them.", "A leap year has many days."),
]


@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        ("length", "two words", 2),
        ("empty", " \n…", 1),
        ("empty", "ok", 0),
        ("repetition", "no no no", 1),
        ("repetition", "the cat the cat the cat", 1),
        ("repetition", "A short answer that says one thing.", 0),
        ("echo", "Hamlet was written by whoever wrote Hamlet.", 0),  # "whoever", "written": new words, and missed
        ("echo", "Hamlet, that is who wrote Hamlet.", 1),
        ("echo", "", 0),
        ("garble", "fine.", 0),
        ("garble", "bro\ufffdken", 1),
        ("garble", "}{][|//**", 1),
        ("garble", "a" * 31, 1),
        ("script", "Шекспир wrote", 7 / 12),
        ("script", "42", 0),
        ("refusal", "I'm sorry, but as an AI I do not know.", 1),
        ("refusal", "I cannot help with that.", 1),
        ("refusal", "You cannot return it after a month.", 0),
    ],
)
def test_measures(name: str, answer: str, value: float) -> None:
    assert MEASURES[name]("Who wrote Hamlet?", answer) == pytest.approx(value)


def test_lines_that_hold_and_lines_that_fail() -> None:
    known = measure([("Who wrote Hamlet?", "It is a play by Shakespeare.")] * 4)
    lines = {g.name: g for g in compare(known, measure([("Who wrote Hamlet?", "no no")] * 4), GuardBounds())}
    assert not lines["shortest"].passed
    assert lines["longest"].passed
    assert lines["shortest"].bound == pytest.approx(0.4 * 6)
    assert {g.name for g in compare(known, known, GuardBounds(), "@anchor") if g.passed} == {
        name + "@anchor" for name in ("shortest", "longest", *MEASURES) if name != "length"
    }


def test_statistics_alone_would_promote_a_parrot_and_the_guard_rejects_it() -> None:
    """The proxy pays parrots 0.84 and honest answers 0.37, as measured: statistics promote, the guard rejects."""
    honest = np.full((len(QUESTIONS), 8), 0.37) + np.linspace(0, 0.05, 8)
    parrot = np.full((len(QUESTIONS), 8), 0.84) + np.linspace(0, 0.05, 8)
    interval = paired(honest, parrot, 0.05)
    assert decide(interval, (), 0, 3)[0] is Decision.PROMOTE
    known = measure((q, a) for q, a, _ in QUESTIONS)
    said = measure((q, p) for q, _, p in QUESTIONS)
    decision, reasons = decide(interval, compare(known, said, GuardBounds()), 0, 3)
    assert decision is Decision.REJECT
    assert any("guard echo failed" in reason for reason in reasons)


def test_small_losses_do_not_add_up_against_the_anchor() -> None:
    """Each version repeats the question 8 points more often than the one before: within the bound, four times."""
    values = [measure([QUESTIONS[0][::2]] * n + [QUESTIONS[0][:2]] * (100 - n)) for n in (0, 8, 16, 24, 32)]
    echo = [{g.name: g for g in compare(a, b, GuardBounds())}["echo"] for a, b in itertools.pairwise(values)]
    assert all(g.passed for g in echo)
    anchored = {g.name: g for g in compare(values[0], values[-1], GuardBounds(), "@anchor")}
    assert not anchored["echo@anchor"].passed


def test_the_anchor_is_kept_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "anchor.json"
    assert load_anchor(path) is None
    anchor = Anchor("base", "abc", {"length": 3.0})
    save_anchor(path, anchor)
    assert load_anchor(path) == anchor
    path.write_text("{")
    with pytest.raises(ContractError, match="not an anchor"):
        load_anchor(path)


def test_suites_name_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text('{"id": "a", "question": "Why?", "system": "Be short."}\n\n{"id": 2, "messages": []}\n')
    with pytest.raises(SuiteError, match=r"suite\.jsonl:3: there is no user message"):
        load_suite(path)
    path.write_text('{"id": "a", "question": "Why?", "system": "Be short."}\n{"id": "a", "question": "How?"}\n')
    with pytest.raises(SuiteError, match="there twice"):
        load_suite(path)
    path.write_text('{"id": "a", "question": "Why?", "system": "Be short.", "meta": {"kind": "x"}}\n')
    (question,) = load_suite(path)
    assert [m["role"] for m in question.messages] == ["system", "user"]
    assert question.raw["meta"] == {"kind": "x"}
    with pytest.raises(SuiteError, match="cannot be read"):
        load_suite(tmp_path / "absent.jsonl")


def test_looks_ask_the_parts_of_a_suite_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(f'{{"id": {n}, "question": "Why {n}?"}}\n' for n in range(65)))
    suite = load_suite(path)
    parts = [{q.id for q in part_of(suite, look, 3)} for look in (1, 2, 3)]
    assert sorted(len(part) for part in parts) == [21, 22, 22]
    assert set.union(*parts) == {q.id for q in suite}, "each question has its turn, and only one"
    assert part_of(suite, 4, 3) == part_of(suite, 1, 3), "a part stays as it is: its anchor is measured once"
    assert {q.id for q in part_of(suite[::-1], 1, 3)} == parts[0], "whatever the order of the file"
    assert len(part_of(suite, 7, 1)) == 65


@pytest.mark.parametrize("path", ["no.such.module:f", "math:nothing", "math", "math:pi", ""])
def test_a_target_that_is_not_there_is_a_sentence(path: str) -> None:
    with pytest.raises(SuiteError, match="target"):
        load_target(path)
