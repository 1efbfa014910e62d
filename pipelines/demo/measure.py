"""The final question set: asked of the base before anything was learned, and of the champion when all is done.

No gate and no cycle ever sees these questions. They go through the gateway, as users' do, to whatever serves then,
with a key and a header that keep their answers out of training. The unit of the comparison is the question.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI, OpenAIError

from evaluation.statistics import paired
from pipelines.demo.errors import DemoFailed
from pipelines.simulate.acceptance import acceptance
from pipelines.simulate.traffic import Answer, chat
from pipelines.simulate.users import as_ask

ANSWERS = 3
"""Answers to each question."""
_NOT_FOR_TRAINING = {"x-everloop-train": "no"}


@dataclass(frozen=True)
class Measured:
    """Answers and their true acceptance, both [question][answer], and the one version that gave them."""

    version: str
    questions: tuple[dict, ...]
    answers: tuple[tuple[Answer, ...], ...]
    truths: tuple[tuple[float, ...], ...]

    @property
    def acceptance(self) -> float:
        """Mean over questions of their mean."""
        return sum(sum(row) / len(row) for row in self.truths) / len(self.truths)


@dataclass(frozen=True)
class Comparison:
    """After minus before, in mean acceptance, with its two-sided 95 % interval paired over questions."""

    before: float
    after: float
    difference: float
    low: float
    high: float


async def measure(
    client: AsyncOpenAI, policy: str, questions: Sequence[dict], *, answers: int = ANSWERS, concurrency: int = 64
) -> Measured:
    """`answers` answers to each of `questions`, from the version that serves now.

    Raises `DemoFailed` where one cannot be had, or where two versions answered.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(question: dict) -> Answer:
        async with slots:
            return await chat(client, policy, as_ask(question), user="final", headers=_NOT_FOR_TRAINING)

    try:
        flat = await asyncio.gather(*(one(question) for question in questions for _ in range(answers)))
    except OpenAIError as error:
        raise DemoFailed(f"a question of the final set got no answer ({type(error).__name__}): see the logs") from error
    versions = sorted({answer.version for answer in flat})
    if len(versions) != 1:
        raise DemoFailed(f"the final set was answered by {' and '.join(versions)}, where one version should serve")
    rows = tuple(tuple(flat[i : i + answers]) for i in range(0, len(flat), answers))
    truths = tuple(
        tuple(acceptance(question, answer.text, answer.finish) for answer in row)
        for question, row in zip(questions, rows, strict=True)
    )
    return Measured(versions[0], tuple(questions), rows, truths)


def compare(before: Measured, after: Measured) -> Comparison:
    """`after` against `before`, on the same questions."""
    import numpy as np

    found = paired(np.array(before.truths), np.array(after.truths), 0.025)
    return Comparison(found.champion_mean, found.challenger_mean, found.difference, found.low, found.high)
