"""The demo's truth, its question files, and its people."""

import random
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from pipelines.simulate import acceptance
from pipelines.simulate.questions import QuestionsUnreadable, load_questions, near_duplicates
from pipelines.simulate.users import Deck, everyday_users
from pipelines.simulate.words import likeness, new_words

QUESTIONS = Path(__file__).parents[2] / "demo" / "questions"
SIZES = {"traffic": 88, "heldout": 32, "final": 40}
TALLEST = {
    "id": "f",
    "system": "Be brief.",
    "question": "What is the tallest animal?",
    "meta": {"kind": "facts", "topic": "giraffe|animal"},
}


@pytest.mark.parametrize(
    ("answer", "finish", "low", "high"),
    [
        ("The giraffe is the tallest animal in Africa.", "stop", 0.87, 0.88),
        ("The tallest animal is the tallest animal.", "stop", 0.02, 0.02),  # parrot
        ("The giraffe is the tallest animal.", "stop", 0.7, 0.9),  # one new word
        ("The giraffe is the tallest animal in Africa, at", "length", 0.6, 0.75),  # cut off
        ("A purple sofa sleeps under quiet water.", "stop", 0.6, 0.7),  # off topic
        ("A **giraffe**\n- in Africa, eating tall leaves.", "stop", 0.6, 0.7),  # markup
        ("zebra zebra zebra zebra zebra zebra zebra", "length", 0.02, 0.1),  # the same word over and over
        ("Giraffe.", "stop", 0.02, 0.02),  # a fragment
        ("1 2 3 4 5 6", "stop", 0.02, 0.02),  # no letters
        ("", "stop", 0.02, 0.02),
        ("   \n ", "length", 0.02, 0.02),
    ],
)
def test_acceptance(answer: str, finish: str, low: float, high: float) -> None:
    assert low <= acceptance(TALLEST, answer, finish) <= high


def test_long_answers_lose() -> None:
    sizes = (8, 16, 20, 30)
    answers = [" ".join(["giraffe", *(f"word{chr(97 + i)}" for i in range(n - 1))]) + "." for n in sizes]
    truths = [acceptance(TALLEST, answer, "stop") for answer in answers]
    assert truths == sorted(truths, reverse=True)
    assert len(set(truths)) == 4


def test_words() -> None:
    assert new_words("How do I clean my glasses?", "Clean the glasses.") == 0
    assert new_words("How do I clean my glasses?", "Use a soft cloth.") == 2
    assert likeness("How can I fold shirts?", "What is the best way to fold a shirt?") == 1.0
    assert likeness("How can I fold shirts?", "Who wrote Hamlet?") == 0.0


def test_splits_are_large_enough_and_have_all_kinds() -> None:
    for name, least in SIZES.items():
        found = load_questions(QUESTIONS / f"{name}.jsonl")
        assert len(found) >= least
        kinds = Counter(question["meta"]["kind"] for question in found)
        assert set(kinds) == {"support", "howto", "facts"}
        assert min(kinds.values()) >= 0.3 * len(found)


def test_splits_share_no_question_and_no_near_duplicate() -> None:
    splits = {name: load_questions(QUESTIONS / f"{name}.jsonl") for name in SIZES}
    for one, other in combinations(splits, 2):
        assert not {q["id"] for q in splits[one]} & {q["id"] for q in splits[other]}
        assert list(near_duplicates(splits[one], splits[other])) == []


def test_near_duplicates_are_found() -> None:
    ones = [{"question": "How do I reset my password?"}]
    others = [{"question": "What is the way to reset a password?"}, {"question": "Who wrote Hamlet?"}]
    assert list(near_duplicates(ones, others)) == [(ones[0]["question"], others[0]["question"])]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 1: not JSON"),
        ('{"id": "a"}', 'needs "id", "system"'),
        ('{"id": "a", "system": "s", "question": "b", "meta": {"kind": "c", "topic": "("}}', "no regular expression"),
        ("", "has no question"),
    ],
)
def test_broken_question_files_say_why(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(line)
    with pytest.raises(QuestionsUnreadable, match=said):
        load_questions(path)


def test_missing_question_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(QuestionsUnreadable, match="there is no question file"):
        load_questions(tmp_path / "none.jsonl")


def test_a_deck_deals_everything_before_anything_twice() -> None:
    questions = [{"id": str(i)} for i in range(7)]
    deck = Deck(questions, random.Random(0))
    for _ in range(2):
        assert sorted(deck.deal()["id"] for _ in range(7)) == list("0123456")


def test_people_accept_with_the_true_probability_and_a_quarter_is_silent() -> None:
    person, *_ = everyday_users([TALLEST], people=3, seed=1)
    ask = person.ask()
    assert [message["content"] for message in ask.messages] == ["Be brief.", TALLEST["question"]]
    answer = "The giraffe is the tallest animal."
    opinions = [person.judge(ask, answer, "stop") for _ in range(4000)]
    said = Counter(opinion.said for opinion in opinions)
    truth = acceptance(TALLEST, answer, "stop")
    assert {opinion.truth for opinion in opinions} == {truth}
    assert abs(said[None] / 4000 - 0.25) < 0.03
    assert abs(said["accept"] / (said["accept"] + said["reject"]) - truth) < 0.03
