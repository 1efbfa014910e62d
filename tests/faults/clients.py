"""Callers, as one process: they ask, and write down what was acknowledged.

    python -m tests.faults.clients --gateway URL --key KEY --ledger FILE --callers N --pause SECONDS --seed N

A line of the ledger is written and synced after the acknowledgement: `turn <id> <time>` when a whole answer was read,
its end included, `feedback <id> <time>` after a 202; times are monotonic. SIGTERM: what is under way is brought to its
end. Nothing is sent twice, so nothing may land twice. Refusals and broken connections are counted in
`<ledger>.refused`, a line each.
"""

import argparse
import asyncio
import os
import random
import signal
import time
from pathlib import Path

import aiohttp

from benchmarks.engine import MODEL

_SECONDS = 60.0
"""For one call, at most: a gateway that was killed resets its connections at once."""


class Notes:
    """A file that is appended to, durably."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: str) -> None:
        """On disk when it returns."""
        os.write(self._fd, line.encode() + b"\n")
        os.fdatasync(self._fd)


class Caller:
    """One conversation after the other, a few turns each."""

    def __init__(self, options: argparse.Namespace, number: int, stop: asyncio.Event) -> None:
        self._url, self._pause, self._stop = options.gateway, options.pause, stop
        self._random = random.Random(f"{options.seed}-{number}")
        self._acknowledged = Notes(options.ledger)
        self._refused = Notes(options.ledger.with_name(options.ledger.name + ".refused"))

    async def call(self, session: aiohttp.ClientSession) -> None:
        """Until it is told to stop."""
        while not self._stop.is_set():
            name = f"{self._random.getrandbits(64):x}"
            for _ in range(self._random.randint(1, 4)):
                try:
                    turn_id = await self._turn(session, name)
                    if turn_id and self._random.random() < 0.5:
                        await self._feedback(session, turn_id, name)
                except (aiohttp.ClientError, TimeoutError) as error:
                    self._refused.write(type(error).__name__)
                    await asyncio.sleep(0.2)
                await asyncio.sleep(self._random.uniform(0, 2 * self._pause))

    async def _turn(self, session: aiohttp.ClientSession, name: str) -> str | None:
        stream = self._random.random() < 0.5
        words = 100_000 if self._random.random() < 0.005 else self._random.randint(10, 300)
        said = " ".join(f"{self._random.getrandbits(24):x}" for _ in range(words))
        body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "stream": stream, "user": name}
        async with session.post(
            f"{self._url}/v1/chat/completions", json=body, headers={"x-everloop-session": name}
        ) as answer:
            data = await answer.read()
            if answer.status != 200:
                self._refused.write(str(answer.status))
                await asyncio.sleep(0.2)
                return None
            turn_id = answer.headers["x-request-id"]
        if stream and not data.endswith(b"data: [DONE]\n\n"):
            self._refused.write("broken off")
            return None
        self._acknowledged.write(f"turn {turn_id} {time.monotonic():.3f}")
        return turn_id

    async def _feedback(self, session: aiohttp.ClientSession, turn_id: str, name: str) -> None:
        kind = self._random.choice(("accept", "reject"))
        body = {"target": "turn", "id": turn_id, "kind": kind, "user": name}
        async with session.post(f"{self._url}/v1/feedback", json=body) as answer:
            if answer.status != 202:
                self._refused.write(str(answer.status))
                return
            feedback_id = (await answer.json())["feedback_id"]
            self._acknowledged.write(f"feedback {feedback_id} {time.monotonic():.3f}")


async def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--callers", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True, help="seconds between two turns of a caller, on average")
    parser.add_argument("--seed", required=True)
    options = parser.parse_args()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    headers = {"authorization": f"Bearer {options.key}"}
    limit = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
        await asyncio.gather(*(Caller(options, number, stop).call(session) for number in range(options.callers)))


if __name__ == "__main__":
    asyncio.run(main())
