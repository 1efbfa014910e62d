"""Users: what a person asks, and how they judge the answer.

`User` is the seam for your own simulation. The demo's everyday people ask from a shared deck of questions, are silent
about a quarter of the answers, and accept the rest with the true probability.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.simulate.acceptance import acceptance


@dataclass(frozen=True)
class Ask:
    """One request: chat messages, the tag that becomes `metadata.kind`, and the question they came from."""

    messages: tuple[dict[str, str], ...]
    kind: str
    question: dict


@dataclass(frozen=True)
class Opinion:
    """What a person makes of an answer: `said` is the feedback they send (None: silence), `truth` their true
    probability of accepting it, for the record only (None where a simulation knows none)."""

    said: str | None
    truth: float | None = None


class User(Protocol):
    """A person. `name` goes into the request's `user` field, which the gateway keeps as a keyed hash only."""

    name: str

    def ask(self) -> Ask:
        """The next request of this person."""
        ...

    def judge(self, ask: Ask, answer: str, finish: str) -> Opinion:
        """Their opinion of `answer`; `finish` is the API's finish reason."""
        ...


class Deck:
    """Deals questions in random order, all of them once before any of them again."""

    def __init__(self, questions: Sequence[dict], rng: random.Random) -> None:
        self._questions, self._rng = list(questions), rng
        self._left: list[dict] = []

    def deal(self) -> dict:
        """The next question."""
        if not self._left:
            self._left = self._rng.sample(self._questions, len(self._questions))
        return self._left.pop()


class EverydayUser:
    """A person of the demo: see `pipelines.simulate.acceptance` for their taste. `silent` is a share, 0 to 1."""

    def __init__(self, name: str, deck: Deck, rng: random.Random, silent: float = 0.25) -> None:
        self.name = name
        self._deck, self._rng, self._silent = deck, rng, silent

    def ask(self) -> Ask:
        """A question of the deck, after the system message."""
        return as_ask(self._deck.deal())

    def judge(self, ask: Ask, answer: str, finish: str) -> Opinion:
        """Silence, or accept with the true probability, else reject."""
        truth = acceptance(ask.question, answer, finish)
        if self._rng.random() < self._silent:
            return Opinion(None, truth)
        return Opinion("accept" if self._rng.random() < truth else "reject", truth)


def as_ask(question: dict) -> Ask:
    """The request that a line of a question file stands for."""
    system = {"role": "system", "content": question["system"]}
    return Ask((system, {"role": "user", "content": question["question"]}), question["meta"]["kind"], question)


def everyday_users(questions: Sequence[dict], *, people: int, seed: int, silent: float = 0.25) -> list[EverydayUser]:
    """`people` persons who share one deck of `questions`."""
    rng = random.Random(seed)
    deck = Deck(questions, rng)
    return [EverydayUser(f"person-{i:02d}", deck, rng, silent) for i in range(people)]
