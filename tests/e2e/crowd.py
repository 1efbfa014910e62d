"""People who talk to the stack through its public API, with the unmodified client, and say what they think."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx
from openai import AsyncOpenAI

RETRIES = 12
"""Of the client itself: long enough for a gateway to come back."""
PEOPLE = 6
AT_ONCE = 24


@dataclass
class Crowd:
    """`acknowledged` are the ids of turns whose answer came. A request that fails for good raises."""

    url: str
    key: str
    policy: str
    acknowledged: list[str] = field(default_factory=list)

    async def wave(
        self, turns: int, opinion: Callable[[int, str], bool], watch: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """`turns` exchanges; `opinion(number, answer)` accepts or rejects. `watch` hears how many were answered."""
        slots = asyncio.Semaphore(AT_ONCE)
        first = len(self.acknowledged)
        async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=RETRIES) as client:

            async def exchange(number: int) -> None:
                async with slots:
                    user = f"person {number % PEOPLE}"
                    answer = await client.chat.completions.create(
                        model=self.policy,
                        messages=[{"role": "user", "content": f"question {first + number}: what do you say?"}],
                        temperature=1,
                        max_tokens=8,
                        user=user,
                    )
                self.acknowledged.append(answer.id)
                liked = opinion(number, answer.choices[0].message.content or "")
                said = {
                    "target": "turn",
                    "id": answer.id,
                    "kind": "accept" if liked else "reject",
                    "idempotency_key": f"said on {answer.id}",
                    "user": user,
                }
                if watch is not None:
                    await watch(len(self.acknowledged) - first)
                await client.post("/feedback", cast_to=httpx.Response, body=said)

            async with asyncio.TaskGroup() as group:
                for number in range(turns):
                    group.create_task(exchange(number))
