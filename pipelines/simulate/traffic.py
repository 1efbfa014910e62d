"""Users at work: requests and feedback through the public API, with the unmodified `openai` client.

A `Crowd` holds the client, its users and the tally. Each exchange is one chat completion and, unless the person is
silent, one POST of feedback; it is written as one line to a journal, which knows what production cannot: the true
probability that the person accepts.

The tally hides nothing: whatever the client raises after its own retries is a failed request, and each of its retries
is counted too.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import httpx
from openai import AsyncOpenAI, OpenAIError

from ingest.contracts.ids import new_id
from pipelines.simulate.users import Ask, Opinion, User

TURN_HEADER = "x-everloop-turn-id"
VERSION_HEADER = "x-everloop-version"


@dataclass(frozen=True)
class Answer:
    """What came back: its text, finish reason, turn id, the weight version that answered ("" unknown), seconds, and
    how often the client had to try again."""

    text: str
    finish: str
    turn_id: str
    version: str
    seconds: float
    retries: int


@dataclass
class Tally:
    """Counts of a crowd so far.

    `retries` are those of requests that got their answer in the end; `failures` has the kinds of error with their
    number, never their content.
    """

    turns: int = 0
    failed_requests: int = 0
    retries: int = 0
    feedback_sent: int = 0
    failed_feedback: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, error: OpenAIError) -> None:
        """Note the kind of `error`: its type, and the HTTP status where there is one."""
        kind = " ".join(str(part) for part in (type(error).__name__, getattr(error, "status_code", "")) if part)
        self.failures[kind] = self.failures.get(kind, 0) + 1


@dataclass(frozen=True)
class Exchange:
    """A line of the journal. `said` is the feedback sent, None for silence; `at` is when the answer was there, Unix
    seconds."""

    at: float
    turn_id: str
    version: str
    question: str
    kind: str
    truth: float | None
    said: str | None
    finish: str
    words: int
    seconds: float


async def chat(
    client: AsyncOpenAI,
    policy: str,
    ask: Ask,
    *,
    user: str,
    max_tokens: int = 32,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One chat completion at temperature 1. Raises what the client raises when its retries are used up."""
    began = time.monotonic()
    raw = await client.chat.completions.with_raw_response.create(
        model=policy,
        messages=[dict(message) for message in ask.messages],  # type: ignore[misc]
        temperature=1,
        max_tokens=max_tokens,
        user=user,
        metadata={"kind": ask.kind},
        extra_headers=headers,
    )
    completion = raw.parse()
    choice = completion.choices[0]
    return Answer(
        text=choice.message.content or "",
        finish=choice.finish_reason or "",
        turn_id=raw.headers.get(TURN_HEADER, completion.id),
        version=raw.headers.get(VERSION_HEADER, ""),
        seconds=time.monotonic() - began,
        retries=raw.retries_taken,
    )


class Crowd:
    """Users who talk to `policy` at once, `concurrency` at most.

    `journal` is appended to; `heard` is called with each exchange as it ends. `concurrency` bounds requests in flight
    over all waves and trickles.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        policy: str,
        users: Sequence[User],
        journal: Path,
        *,
        concurrency: int = 64,
        heard: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self.tally = Tally()
        self._client, self._policy, self._users, self._heard = client, policy, users, heard
        self._slots = asyncio.Semaphore(concurrency)
        self._next = 0
        journal.parent.mkdir(parents=True, exist_ok=True)
        self._journal: IO[str] = journal.open("a", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Close the journal; the client stays the caller's."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def wave(self, turns: int) -> None:
        """`turns` exchanges, as many at once as the crowd may have."""
        await asyncio.gather(*(self.exchange() for _ in range(turns)))

    async def steadily(
        self, per_second: float, *, turns: int | None = None, until: asyncio.Event | None = None
    ) -> None:
        """Begin an exchange every 1/`per_second` s, `turns` of them or until the event; then wait for their ends."""
        until = until or asyncio.Event()
        async with asyncio.TaskGroup() as group:
            begun = 0
            while not until.is_set() and (turns is None or begun < turns):
                group.create_task(self.exchange())
                begun += 1
                await _either(until.wait(), 1 / per_second)

    async def exchange(self) -> None:
        """One person asks, reads, and says what they think, or nothing."""
        user = self._users[self._next % len(self._users)]
        self._next += 1
        async with self._slots:
            ask = user.ask()
            try:
                answer = await chat(self._client, self._policy, ask, user=user.name)
            except OpenAIError as error:
                self.tally.failed_requests += 1
                self.tally.fail(error)
                return
            answered_at = time.time()
            self.tally.turns += 1
            self.tally.retries += answer.retries
            opinion = user.judge(ask, answer.text, answer.finish)
            if opinion.said is not None:
                await self._say(answer, opinion, user.name)
        self._note(ask, answer, answered_at, opinion)

    async def _say(self, answer: Answer, opinion: Opinion, user: str) -> None:
        body: dict[str, Any] = {
            "target": "turn",
            "id": answer.turn_id,
            "kind": opinion.said,
            "idempotency_key": new_id("said"),
            "source": "simulator",
            "user": user,
        }
        try:
            await self._client.post("/feedback", cast_to=httpx.Response, body=body)
        except OpenAIError as error:
            self.tally.failed_feedback += 1
            self.tally.fail(error)
        else:
            self.tally.feedback_sent += 1

    def _note(self, ask: Ask, answer: Answer, answered_at: float, opinion: Opinion) -> None:
        exchange = Exchange(
            at=answered_at,
            turn_id=answer.turn_id,
            version=answer.version,
            question=ask.question["id"],
            kind=ask.kind,
            truth=opinion.truth,
            said=opinion.said,
            finish=answer.finish,
            words=len(answer.text.split()),
            seconds=answer.seconds,
        )
        self._journal.write(json.dumps(asdict(exchange)) + "\n")
        self._heard(exchange)


async def _either(waiting: Awaitable[object], seconds: float) -> None:
    """Wait for `waiting`, `seconds` at most."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return
