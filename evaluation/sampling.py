"""Samples answers from one version, through the path that users take.

Each request goes to the gateway's /v1/chat/completions with `x-everloop-version`, so that only an engine that
reports this version may answer; the challenger's carry `x-everloop-arm: evaluation` too, and reach an engine that
no user meets. Answers to the evaluation are never trained on (`x-everloop-train: no`), and each question has a session
of its own, by which they are found when it has to go (`evaluation.erasure`).

Invariant: every question has its full number of answers from the version asked for, or `SamplingError`. A
sample that shrank by what failed would favour the version whose long answers time out.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from evaluation.config import SamplingSettings
from evaluation.errors import SamplingError
from evaluation.suites import Question

_USABLE = frozenset({"stop", "length", "tool_calls"})
_FINAL = frozenset({400, 401, 403, 404, 405, 413, 422})
"""Statuses that asking again does not change."""


@dataclass(frozen=True)
class Source:
    """Where answers come from: a policy behind `gateway` (its base URL), asked alike for each of its versions.

    `key` has the role `evaluation`.
    """

    gateway: str
    key: str
    policy: str
    settings: SamplingSettings


@dataclass(frozen=True)
class Answer:
    """One answer: its text, the engine's finish reason, and the turn on the log."""

    text: str
    finish: str
    turn_id: str


class _Again(Exception):
    """A failure that may pass; says what it was."""


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict, headers: dict[str, str], version: str, question: str
) -> Answer:
    async with session.post(url, json=body, headers=headers) as response:
        if response.status != 200:
            what = f"status {response.status} for version {version}, question {question}"
            if response.status in _FINAL:
                raise SamplingError(f"the gateway refused with {what}: check the key's role and the policy's name")
            raise _Again(what)
        served = response.headers.get("x-everloop-version", version)
        turn = response.headers.get("x-everloop-turn-id", "")
        answer = await response.json()
    if served != version:
        raise SamplingError(f"version {served} answered where {version} was asked for: the gateway must not do that")
    try:
        choice = answer["choices"][0]
        text, finish = choice["message"]["content"] or "", choice["finish_reason"]
    except (LookupError, TypeError) as error:
        raise _Again(f"a body that is no chat completion, question {question}") from error
    if finish not in _USABLE:
        raise _Again(f"finish reason {finish}, question {question}")
    return Answer(text, finish, turn or answer.get("id", ""))


async def _sample(
    questions: Sequence[Question], source: Source, version: str, evaluation_arm: bool
) -> list[list[Answer]]:
    settings = source.settings
    url = source.gateway.rstrip("/") + "/v1/chat/completions"
    headers = {"Authorization": f"Bearer {source.key}", "x-everloop-version": version, "x-everloop-train": "no"}
    if evaluation_arm:
        headers["x-everloop-arm"] = "evaluation"
    gate = asyncio.Semaphore(settings.concurrency)

    async def one(question: Question) -> Answer:
        body = {
            "model": source.policy,
            "messages": list(question.messages),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_tokens,
        }
        async with gate:
            for attempt in range(settings.retries + 1):
                try:
                    asked = headers | {"x-everloop-session": question.session}
                    return await _ask(session, url, body, asked, version, question.id)
                except (_Again, aiohttp.ClientError, TimeoutError) as error:
                    failure = str(error) or type(error).__name__
                if attempt < settings.retries:
                    await asyncio.sleep(min(0.25 * 2**attempt, 5.0))
        raise SamplingError(
            f"no answer after {settings.retries + 1} tries ({failure}): see that an engine serves {version}"
        )

    timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds)
    connector = aiohttp.TCPConnector(limit=settings.concurrency)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
        tasks = [[group.create_task(one(q)) for _ in range(settings.answers)] for q in questions]
    return [[task.result() for task in row] for row in tasks]


def sample(
    questions: Sequence[Question], source: Source, version: str, *, evaluation_arm: bool = False
) -> list[list[Answer]]:
    """`source.settings.answers` answers of `version` to each question, in order; `evaluation_arm`: of a challenger.

    Raises `SamplingError` when one cannot be had: the first failure ends it.
    """
    try:
        return asyncio.run(_sample(questions, source, version, evaluation_arm))
    except ExceptionGroup as group:
        failed, other = group.split(SamplingError)
        if failed is None or other is not None:
            raise
        raise failed.exceptions[0] from None
