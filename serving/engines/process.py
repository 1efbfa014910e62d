"""One vLLM process: started on a version, swapped to another, asked how it stands, drained, ended.

It knows what runs, not what should: `serving.engines.agent` decides that.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ingest.contracts.fleet import Reference, Swap, Version
from serving.engines.child import Child
from serving.engines.links import EngineError, EngineLink
from serving.fleet.swap import EngineInfo, SwapRequest

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
ASK_SECONDS = 1.0
HEAR_SECONDS = 2.0
"""After so long every gateway has heard, through control, that this engine takes nothing new."""
SILENCE_SECONDS = 60.0
"""A process that runs but has not answered for so long is ended."""
SETTLE_SECONDS = 60.0
"""A process that has not said for so long after a swap what it serves is ended."""
STOP_SECONDS = 10.0


class LoadFailed(RuntimeError):
    """A version was not loaded: says how far it came."""


class EngineProcess:
    """See the module. `launch` starts vLLM on a version; `stopping` cuts a start short."""

    def __init__(
        self, link: EngineLink, launch: Callable[[Version], Awaitable[Child]], stopping: asyncio.Event
    ) -> None:
        self._link = link
        self._launch = launch
        self._stopping = stopping
        self._child: Child | None = None
        self._info: EngineInfo | None = None
        self._answered_at = 0.0

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._child is not None and self._child.returncode is None

    @property
    def info(self) -> EngineInfo | None:
        """What it said of itself last; None before it is up, and once it is gone."""
        return self._info if self.running else None

    async def start(self, version: Version, seconds: float) -> Reference:
        """A cold load of `version` in a new process, up within `seconds`, and how it behaves; raises `LoadFailed`."""
        await self.end(STOP_SECONDS)
        began = time.monotonic()
        self._child = child = await self._launch(version)
        while self._info is None:
            if child.returncode is not None:
                raise LoadFailed(f"vLLM ended with {child.returncode} while loading {version.version}: see its log")
            if self._stopping.is_set() or time.monotonic() - began > seconds:
                await self.end(0.0)
                raise LoadFailed(
                    f"vLLM was not up {time.monotonic() - began:.0f} s after its start on {version.version}"
                )
            await asyncio.sleep(LOOK_SECONDS)
            await self.ask()
        try:
            return await self._link.measure()
        except EngineError as error:
            await self.end(0.0)
            raise LoadFailed(f"{version.version} could not be measured: {error}") from error

    async def swap(self, request: SwapRequest, begun: Swap) -> Swap:
        """A swap in place: its record; `begun`, where the answer was lost and the process says that it was done.

        Raises `EngineError` where it was not. A process that does not say clearly what it serves is ended.
        """
        failed: EngineError | None = None
        try:
            swap = await self._link.swap(request)
        except EngineError as error:
            swap, failed = begun, error
        serves = await self._settled()
        if serves == begun.to_version and not swap.error:
            return swap
        if serves == begun.from_version and failed is not None:
            raise failed
        if serves == begun.from_version and swap.error:
            return swap
        await self.end(0.0)
        raise EngineError(
            f"{failed or swap.error or request.target.version + ' was swapped in'}; "
            "vLLM did not say clearly what it serves then, and was ended"
        )

    async def _settled(self) -> str | None:
        """What it serves, asked anew until it is not swapping; None where that does not come, or it is unusable."""
        until = time.monotonic() + SETTLE_SECONDS
        while self.running and time.monotonic() < until:
            if await self.ask() and self._info is not None and not self._info.swapping:
                return self._info.version if self._info.usable else None
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def ask(self) -> bool:
        """Asks how it stands, and says whether it answered; where it did not, its last answer stands."""
        try:
            self._info = await self._link.state()
        except EngineError:
            return False
        self._answered_at = time.monotonic()
        return True

    async def look(self) -> None:
        """Asks from time to time, and ends a process that is silent or says that it is unusable."""
        now = time.monotonic()
        if now - self._answered_at > ASK_SECONDS:
            await self.ask()
        silent = now - self._answered_at > SILENCE_SECONDS
        if self.running and (silent or (self._info is not None and not self._info.usable)):
            log.warning("vLLM %s: ending it", "is silent" if silent else "is not usable")
            await self.end(0.0)

    async def drain(self, seconds: float) -> None:
        """Waits until every gateway has heard that this engine takes nothing new, and nothing is in flight; `seconds`
        at most."""
        until = time.monotonic() + seconds
        await asyncio.sleep(min(HEAR_SECONDS, seconds))
        while self.running and time.monotonic() < until:
            await self.ask()
            if self._info is None or not self._info.in_flight:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self, seconds: float) -> None:
        """Ends the process, if there is one, by force after `seconds`."""
        if self._child is not None:
            if self._child.returncode is not None:
                log.warning("vLLM ended with %s", self._child.returncode)
            await self._child.stop(seconds)
        self._child = self._info = None
