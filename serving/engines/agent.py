"""The agent of one engine: keeps vLLM running on the weights that control assigns, and says so each second.

Two loops. `serving.engines.report` posts a heartbeat each second, whatever else goes on and whether or not control
answers, and keeps the latest assignment. `_work` does one thing at a time: start a child that is not there, take in an
assignment, or watch. So starts and swaps never overlap.

    serve engine       assigned a version with a reference of its build: swapped in hot, proven by the plugin
                       without one: drained, loaded cold
    evaluation engine  loads every version cold
    every cold load    measures the reference and gives it to control

The engine is `joining` until it runs, is labelled and measured. A version that could not be taken in is left alone for
a while; the version before serves on, and `error` says why.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import aiohttp
from msgspec.structs import replace

from ingest.contracts.fleet import Assignment, EngineState, Heartbeat, Swap, Version
from serving.engines.child import Child
from serving.engines.launch import EngineSettings
from serving.engines.links import ControlLink, EngineError, EngineLink
from serving.engines.refusals import Refusals
from serving.engines.report import Reporter
from serving.fleet.swap import EngineInfo, SwapRequest

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.25
ASK_SECONDS = 1.0
HEAR_SECONDS = 2.0
"""After so long every gateway has heard, through control, that this engine takes nothing new."""
SILENCE_SECONDS = 60.0
"""A child that runs but has not answered for so long is started anew."""
STOP_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 60.0


class StartFailed(RuntimeError):
    """vLLM did not come up: says how far it came."""


class Agent:
    """See the module. `launch` starts vLLM on a version; `run` returns some time after `stop`."""

    def __init__(
        self,
        settings: EngineSettings,
        session: aiohttp.ClientSession,
        control_token: str,
        engine_token: str,
        launch: Callable[[Version], Awaitable[Child]],
    ) -> None:
        self._settings = settings
        self._token = engine_token
        self._engine = EngineLink(session, f"http://{settings.host}:{settings.port}", engine_token)
        control = ControlLink(session, settings.control, control_token)
        self._reporter = Reporter(control, settings.engine_id, settings.policy, self._heartbeat)
        self._launch = launch
        self._child: Child | None = None
        self._served = Version(settings.version, str(settings.model))
        self._info: EngineInfo | None = None
        self._answered_at = 0.0
        self._failed_starts = 0
        self._state = EngineState.JOINING
        self._error = ""
        self._refusals = Refusals(time.monotonic)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Drain, then end."""
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`; the child ends with it, whatever ends it."""
        reporting = asyncio.create_task(self._reporter.run())
        try:
            while not self._stopping.is_set():
                await self._work()
            await self._drain()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            if self._child is not None:
                await self._child.stop(STOP_SECONDS)
        await self._reporter.leave()

    async def _work(self) -> None:
        if self._child is None or self._child.returncode is not None:
            await self._revive()
        elif (assignment := self._pending()) is not None:
            await self._take(assignment)
        else:
            await self._watch()

    def _pending(self) -> Assignment | None:
        assignment = self._reporter.assignment
        if assignment is None or assignment.drain or assignment.target.version == self._served.version:
            return None
        return None if self._refusals.stand(assignment.target.version) else assignment

    # Starting

    async def _revive(self) -> None:
        """Starts the child on what it served last, later each time in a row that it does not come up."""
        if self._child is not None:
            log.warning("engine %s ended with %s: starting it again", self._settings.engine_id, self._child.returncode)
        if self._failed_starts:
            await self._pause(min(2.0**self._failed_starts, LONGEST_BACKOFF_SECONDS))
        try:
            await self._start(self._served)
        except StartFailed as error:
            self._failed_starts += 1
            self._fail(str(error), EngineState.FAILED)

    async def _start(self, version: Version) -> None:
        """A cold load of `version`, measured; raises `StartFailed`."""
        self._state, self._info = EngineState.JOINING, None
        if self._child is not None:
            await self._child.stop(STOP_SECONDS)
        began = time.monotonic()
        self._child = await self._launch(version)
        while self._info is None:
            if self._child.returncode is not None:
                raise StartFailed(
                    f"vLLM ended with {self._child.returncode} while loading {version.version}: see its log"
                )
            if self._stopping.is_set() or time.monotonic() - began > self._settings.start_seconds:
                await self._child.stop(0.0)
                raise StartFailed(
                    f"vLLM was not up {time.monotonic() - began:.0f} s after its start on {version.version}"
                )
            await asyncio.sleep(WATCH_SECONDS)
            await self._ask()
        try:
            reference = await self._engine.measure()
        except EngineError as error:
            await self._child.stop(0.0)
            raise StartFailed(f"{version.version} could not be measured: {error}") from error
        self._reporter.tell(reference)
        self._served, self._state, self._error, self._failed_starts = version, EngineState.READY, "", 0
        self._refusals.forget(version.version)
        log.info(
            "engine %s serves %s after %.1f s", self._settings.engine_id, version.version, time.monotonic() - began
        )

    # Taking in an assignment

    async def _take(self, assignment: Assignment) -> None:
        reference, build = assignment.reference, self._info.build if self._info else ""
        hot = assignment.load == "hot" and reference is not None and reference.build == build
        began, started_at, before = time.monotonic(), time.time(), self._served.version
        swap = Swap(
            engine_id=self._settings.engine_id,
            policy=self._settings.policy,
            from_version=before,
            to_version=assignment.target.version,
            load="hot" if hot else "cold",
            started_at=started_at,
            pause_ms=0.0,
            load_ms=0.0,
            verify_ms=0.0,
            total_ms=0.0,
        )
        try:
            if hot:
                swap = await self._swap(assignment)
            else:
                await self._drain()
                await self._start(assignment.target)
        except (StartFailed, EngineError) as error:
            swap = replace(swap, error=str(error))
        swap = replace(swap, total_ms=(time.monotonic() - began) * 1000.0)
        self._reporter.tell(swap)
        if swap.error:
            self._refusals.add(assignment.target.version)
            up = self._child is not None and self._child.returncode is None
            self._fail(swap.error, EngineState.READY if up else EngineState.JOINING)
        else:
            self._refusals.forget(assignment.target.version)
            self._served, self._state, self._error = assignment.target, EngineState.READY, ""
            log.info("engine %s took in %s (%s)", self._settings.engine_id, swap.to_version, swap.load)

    async def _swap(self, assignment: Assignment) -> Swap:
        """A hot swap. An engine that does not say clearly what it serves afterwards is ended, to be started anew."""
        self._state = EngineState.SWAPPING
        request = SwapRequest(
            engine_id=self._settings.engine_id,
            policy=self._settings.policy,
            target=assignment.target,
            reference=assignment.reference,
        )
        try:
            return await self._engine.swap(request)
        finally:
            await self._ask()
            if self._child is not None and not self._trusted(assignment.target):
                await self._child.stop(0.0)

    def _trusted(self, target: Version) -> bool:
        info = self._info
        return info is not None and info.usable and info.version in (self._served.version, target.version)

    # Watching and stopping

    async def _watch(self) -> None:
        await self._pause(WATCH_SECONDS)
        now = time.monotonic()
        if now - self._answered_at > ASK_SECONDS:
            await self._ask()
        lost = now - self._answered_at > SILENCE_SECONDS
        if self._child is not None and (lost or (self._info is not None and not self._info.usable)):
            log.warning("engine %s %s: ending it", self._settings.engine_id, "is silent" if lost else "is not usable")
            await self._child.stop(0.0)
        drain = self._reporter.assignment is not None and self._reporter.assignment.drain
        if self._state in (EngineState.READY, EngineState.DRAINING):
            self._state = EngineState.DRAINING if drain else EngineState.READY

    async def _ask(self) -> None:
        """What the engine says of itself; after an answer that did not come, the last one stands."""
        try:
            self._info = await self._engine.state()
        except EngineError:
            return
        self._answered_at = time.monotonic()

    async def _drain(self) -> None:
        """Takes nothing new, and waits for what is in flight, `drain_seconds` at most."""
        if self._child is None or self._child.returncode is not None:
            return
        self._state = EngineState.DRAINING
        until = time.monotonic() + self._settings.drain_seconds
        await asyncio.sleep(min(HEAR_SECONDS, self._settings.drain_seconds))
        while time.monotonic() < until:
            await self._ask()
            if self._info is None or not self._info.in_flight or self._child.returncode is not None:
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _fail(self, error: str, state: EngineState) -> None:
        self._error, self._state = error, state
        log.warning("engine %s: %s", self._settings.engine_id, error)

    def _heartbeat(self) -> Heartbeat:
        info, settings = self._info, self._settings
        return Heartbeat(
            policy=settings.policy,
            url=settings.url,
            token=self._token,
            role=settings.role,
            state=self._state,
            version=info.version if info else "",
            build=info.build if info else "",
            max_model_len=info.max_model_len if info else 0,
            error=self._error,
        )
