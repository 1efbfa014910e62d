"""The agent of one engine: keeps vLLM running on the weights that control assigns, and says so twice a second.

Two loops. `serving.engines.report` posts a heartbeat twice a second, whatever else goes on and whether or not control
answers, and keeps the latest assignment. `_work` does one thing at a time: start a process that is not there, take in
an assignment, or watch. So starts and swaps never overlap.

    every load         first the folder's digests, while what serves serves on
    serve engine       assigned a version with a reference of its build: swapped in hot, proven by the plugin
                       without one: drained, loaded cold
    evaluation engine  loads every version cold
    every cold load    is measured; control keeps the first measurement of a version and build as its reference, and
                       a load that contradicts it is ended

An assignment counts only as the answer to what the engine says of itself now: one that was given before a start knows
neither its build nor its version, and one given before a failure does not know that it must wait. So the engine is
`joining` until it runs, is labelled and measured, control has taken the measurement, and has then asked for no other
version. What it serves is in each heartbeat, whatever was assigned. A version that could not be taken in is left alone
for a while; the version before serves on, and `refusal` says why.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import aiohttp
from msgspec.structs import replace

from ingest.contracts.fleet import EngineState, Heartbeat, Reference, Swap, Version
from serving.engines.child import Child
from serving.engines.launch import EngineSettings
from serving.engines.links import ControlLink, EngineError, EngineLink
from serving.engines.process import LOOK_SECONDS, STOP_SECONDS, EngineProcess, LoadFailed
from serving.engines.refusals import Refusals
from serving.engines.report import Reporter
from serving.fleet import folder as folders
from serving.fleet.swap import SwapRequest, contradiction

log = logging.getLogger(__name__)

LONGEST_BACKOFF_SECONDS = 60.0


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
        self._stopping = asyncio.Event()
        link = EngineLink(session, f"http://{settings.host}:{settings.port}", engine_token)
        self._engine = EngineProcess(link, launch, self._stopping)
        control = ControlLink(session, settings.control, control_token)
        self._reporter = Reporter(control, settings.engine_id, settings.policy, self._heartbeat)
        self._served = Version(settings.version, str(settings.model))
        self._reference: Reference | None = None
        """How what it served last behaves, by control's word or by a measurement that control took."""
        self._failed_starts = 0
        self._state = EngineState.JOINING
        self._refusals = Refusals(time.monotonic)

    def stop(self) -> None:
        """Drain, then end."""
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`; the child ends with it, whatever ends it."""
        reporting = asyncio.create_task(self._reporter.run())
        try:
            # What control assigns is started at once; without its word, the command line's version. That may have been
            # rolled back since, but nobody hears that it is ready before control has said what it should serve.
            await self._reporter.tried.wait()
            while not self._stopping.is_set():
                await self._work()
            await self._drain()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await self._engine.end(STOP_SECONDS)
        await self._reporter.leave()

    async def _work(self) -> None:
        if not self._engine.running:
            return await self._revive()
        answer = self._reporter.answer
        if answer is not None and answer.to == self._heartbeat():
            target, reference = answer.assignment.target, answer.assignment.reference
            if target is not None and target.version == self._served.version:
                self._refusals.clear()
            elif target is not None and not self._refusals.stand(target.version):
                return await self._take(target, reference)
            self._state = EngineState.READY
        await self._pause(LOOK_SECONDS)
        await self._engine.look()

    # Loading

    async def _revive(self) -> None:
        """Starts vLLM, later each time in a row that it does not come up."""
        if not self._failed_starts:
            log.info("engine %s: vLLM does not run, starting it", self._settings.engine_id)
            self._state = EngineState.JOINING
        elif self._to_start() is not None:
            await self._pause(min(2.0**self._failed_starts, LONGEST_BACKOFF_SECONDS))
        version = self._to_start()
        if version is None or self._stopping.is_set():
            return await self._pause(LOOK_SECONDS)
        try:
            await self._check(version)
            await self._load(version)
        except LoadFailed as error:
            self._failed_starts += 1
            self._refuse(version, str(error), EngineState.FAILED)
        else:
            self._refusals.restart()

    def _to_start(self) -> Version | None:
        """What control assigned last; where that failed lately, what served before. None: nothing for now.

        Nobody misses what an evaluation engine served before: it waits until the challenger may be tried again. Only at
        its first start it comes up on what there is, for a stack that starts waits for all its engines.
        """
        answer = self._reporter.answer
        version = (answer.assignment.target if answer else None) or self._served
        if not self._refusals.stand(version.version):
            return version
        waits = self._settings.role == "evaluation" and self._reference is not None
        return None if waits else self._served

    async def _check(self, version: Version) -> None:
        """Raises `LoadFailed` unless the folder is the version's, byte by byte."""
        try:
            await asyncio.to_thread(folders.verify, version, self._settings.weights_root)
        except folders.FolderError as error:
            raise LoadFailed(f"{version.version} is not loaded: {error}") from error

    async def _load(self, version: Version) -> None:
        """A cold load of `version`, measured and not contradicted; raises `LoadFailed`, and then nothing runs."""
        self._state = EngineState.JOINING
        began = time.monotonic()
        measured = await self._engine.start(version, self._settings.start_seconds)
        kept = self._reference
        problem = ""
        if kept is not None and (kept.version, kept.build) == (measured.version, measured.build):
            problem = contradiction(measured, kept)
        problem = problem or await self._refused_by_control(measured)
        if problem:
            await self._engine.end(0.0)
            raise LoadFailed(f"{version.version} was loaded and does not behave as it should: {problem}")
        self._served, self._reference, self._failed_starts = version, measured, 0
        self._refusals.forget(version.version)
        log.info("engine %s loaded %s in %.1f s", self._settings.engine_id, version.version, time.monotonic() - began)

    async def _refused_by_control(self, measured: Reference) -> str:
        """Why control does not take a measurement, empty where it does. While it is away: waits, as nobody hears
        that the engine is ready either."""
        answer = self._reporter.tell(measured)
        while not answer.done() and not self._stopping.is_set():
            if not self._engine.running:
                raise LoadFailed(f"vLLM ended soon after it had loaded {measured.version}: see its log")
            await asyncio.wait({answer}, timeout=LOOK_SECONDS)
        return answer.result() if answer.done() else ""

    # Taking in an assignment

    async def _take(self, target: Version, reference: Reference | None) -> None:
        info = self._engine.info
        hot = reference is not None and info is not None and reference.build == info.build
        began, started_at, before = time.monotonic(), time.time(), self._state
        swap = Swap(
            engine_id=self._settings.engine_id,
            policy=self._settings.policy,
            from_version=self._served.version,
            to_version=target.version,
            load="hot" if hot else "cold",
            started_at=started_at,
            pause_ms=0.0,
            load_ms=0.0,
            verify_ms=0.0,
            total_ms=0.0,
        )
        try:
            await self._check(target)
            if hot:
                self._state = EngineState.SWAPPING
                request = SwapRequest(engine_id=swap.engine_id, policy=swap.policy, target=target, reference=reference)
                swap = await self._engine.swap(request, swap)
            else:
                await self._drain()
                await self._load(target)
        except (LoadFailed, EngineError) as error:
            swap = replace(swap, error=str(error))
        swap = replace(swap, total_ms=(time.monotonic() - began) * 1000.0)
        self._reporter.tell(swap)
        if swap.error:
            self._refuse(target, swap.error, before if self._engine.running else EngineState.JOINING)
            return
        if hot:
            self._served, self._reference, self._state = target, reference, before
            self._refusals.clear()
        log.info("engine %s took in %s (%s)", self._settings.engine_id, swap.to_version, swap.load)

    # Stopping

    async def _drain(self) -> None:
        """Takes nothing new, and waits for what is in flight, `drain_seconds` at most."""
        if self._engine.running:
            self._state = EngineState.DRAINING
            await self._engine.drain(self._settings.drain_seconds)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _refuse(self, version: Version, error: str, state: EngineState) -> None:
        self._refusals.add(version.version, error)
        self._state = state
        log.warning("engine %s: %s", self._settings.engine_id, error)

    def _heartbeat(self) -> Heartbeat:
        info, settings, refusal = self._engine.info, self._settings, self._refusals.last()
        return Heartbeat(
            policy=settings.policy,
            url=settings.url,
            token=self._token,
            role=settings.role,
            state=self._state,
            version=info.version if info else "",
            build=info.build if info else "",
            max_model_len=info.max_model_len if info else 0,
            media=info is not None and info.media,
            error=refusal.error if refusal else "",
            refusal=refusal,
        )
