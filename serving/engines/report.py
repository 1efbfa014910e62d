"""What an agent tells control, in order: swaps and references as they happen, and a heartbeat twice a second.

What happened is delivered before the heartbeat that follows from it, so control never sees an engine ready on a version
whose reference it does not have. While control is away, what is to be said waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ingest.contracts.fleet import Assignment, Heartbeat, Reference, Swap
from serving.engines.links import ControlAway, ControlLink, ControlRefused

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5


class Answer(NamedTuple):
    """What control answered to a heartbeat."""

    to: Heartbeat
    assignment: Assignment


class Reporter:
    """`heartbeat` is asked for what to say each time; `answer` is control's latest, None before the first."""

    def __init__(self, control: ControlLink, engine_id: str, policy: str, heartbeat: Callable[[], Heartbeat]) -> None:
        self._control = control
        self._engine_id = engine_id
        self._policy = policy
        self._heartbeat = heartbeat
        self._outbox: list[tuple[Swap | Reference, asyncio.Future[str]]] = []
        self._news = asyncio.Event()
        self.answer: Answer | None = None
        self.tried = asyncio.Event()
        """Set once control has answered, or has not."""

    def tell(self, event: Swap | Reference) -> asyncio.Future[str]:
        """Delivers it and a heartbeat at once. Then the future has why control does not take it, or nothing."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._outbox.append((event, answer))
        self._news.set()
        return answer

    async def run(self) -> None:
        """Until cancelled."""
        away = False
        while True:
            next_at = time.monotonic() + BEAT_SECONDS
            self._news.clear()
            try:
                await self._deliver()
                beat = self._heartbeat()
                self.answer = Answer(beat, await self._control.heartbeat(self._engine_id, beat))
                away = False
            except (ControlAway, ControlRefused) as error:
                if not away:
                    log.warning("engine %s goes on without control: %s", self._engine_id, error)
                away = True
            self.tried.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(0.0, next_at - time.monotonic()))

    async def leave(self) -> None:
        """Says what is left to say, and that the engine is gone; once, for its process ends now."""
        try:
            await self._deliver()
            await self._control.leave(self._engine_id)
        except (ControlAway, ControlRefused) as error:
            log.warning("engine %s left without control hearing of it: %s", self._engine_id, error)

    async def _deliver(self) -> None:
        """In order; what control refuses is not said again."""
        while self._outbox:
            event, answer = self._outbox[0]
            refusal = ""
            try:
                if isinstance(event, Swap):
                    await self._control.report(event)
                else:
                    await self._control.put_reference(self._policy, event)
            except ControlRefused as error:
                refusal = str(error)
                log.warning("engine %s: %s", self._engine_id, refusal)
            del self._outbox[0]
            if not answer.done():
                answer.set_result(refusal)
