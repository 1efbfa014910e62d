"""An engine's agent on a stage: a real child process, a stand-in for vLLM, and a control of a few lines.

`stage` is the fixture: an engine of version v0 that runs, and what its control was told.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.fleet import Assignment, EngineState, Heartbeat, Reference, Swap, Version
from pipelines.stack.addresses import free_port
from serving.engines.agent import Agent
from serving.engines.child import Child
from serving.engines.launch import EngineSettings
from tests.checkpoint_folders import make_checkpoint
from tests.fake_vllm import BUILD

REFERENCE = Reference(version="", build=BUILD, checksum="c", sequences=((1, 2),), logprobs=((-1.0,),), noise=0.0)


class FakeControl:
    """Keeps what it is told, answers heartbeats with `assignment`; `away` makes it answer 503, `garbled` nonsense.

    A cold load of a version in `damaged` is refused, as one that contradicts the reference. An engine whose build is
    not known yet gets no reference.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.damaged: set[str] = set()
        self.assign("v0")
        self.away = False
        self.garbled = False
        self.told: list[Any] = []
        self.left = False
        self.port = free_port()

    @property
    def beat(self) -> Heartbeat | None:
        return next((told for told in reversed(self.told) if isinstance(told, Heartbeat)), None)

    def all(self, kind: type) -> list[Any]:
        return [told for told in self.told if isinstance(told, kind)]

    def take(self, kind: type) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            assert request.headers["Authorization"] == "Bearer control-token"
            if self.away:
                return web.json_response({"error": "away"}, status=503)
            told = msgspec.json.decode(await request.read(), type=kind)
            self.told.append(told)
            if isinstance(told, Reference) and told.version in self.damaged:
                return web.json_response({"error": "not what the first one was"}, status=409)
            if self.garbled:
                return web.Response(body=b"<html>", content_type="text/html")
            assignment = self.assignment
            if isinstance(told, Heartbeat) and not told.build:
                assignment = msgspec.structs.replace(assignment, reference=None)
            return web.Response(body=msgspec.json.encode(assignment), content_type="application/json")

        return handler

    async def leave(self, request: web.Request) -> web.Response:
        self.left = True
        return web.json_response({})

    def export(self, version: str) -> Path:
        """The folder of a version; made when it is first asked for."""
        folder = self.checkpoints / "p" / version
        return (folder if folder.exists() else make_checkpoint(self.checkpoints, version, policy="p")) / EXPORT

    def assign(self, version: str, *, build: str | None = BUILD) -> None:
        reference = msgspec.structs.replace(REFERENCE, version=version, build=build) if build else None
        target = Version(version, str(self.export(version)))
        self.assignment = Assignment(target=target, reference=reference)


class Stage:
    """The agent, its control, which versions it started vLLM on, and how to wait for something."""

    def __init__(self, control: FakeControl, crash: Path) -> None:
        self.control, self.crash = control, crash
        self.damaged = crash.with_name("damaged")
        self.launched: list[str] = []
        self.agent: Agent

    async def until(self, condition: Callable[[Heartbeat], bool]) -> Heartbeat:
        async with asyncio.timeout(180):
            while True:
                beat = self.control.beat
                if beat is not None and condition(beat):
                    return beat
                await asyncio.sleep(0.05)

    async def until_launched(self, *versions: str) -> None:
        async with asyncio.timeout(180):
            while self.launched != list(versions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def ready_on(self) -> set[str]:
        """Each version that control has seen ready."""
        return {beat.version for beat in self.control.all(Heartbeat) if beat.state == EngineState.READY}

    async def until_loaded_cold(self, *versions: str) -> None:
        """Until each cold load has left its reference; states between two heartbeats may pass unseen."""
        await self.until(lambda beat: [r.version for r in self.control.all(Reference)] == list(versions))

    async def until_ready(self, version: str) -> Heartbeat:
        return await self.until(lambda beat: (beat.state, beat.version) == (EngineState.READY, version))


@pytest.fixture
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """An engine of version v0. A test may give its role, what is assigned at its start, and whether control is away."""
    given = {"role": "serve", "assigned": "v0", "away": False, **getattr(request, "param", {})}
    control, port, crash = FakeControl(tmp_path / "checkpoints"), free_port(), tmp_path / "crash"
    control.assign(given["assigned"])
    control.away = given["away"]
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/engines/{id}/heartbeat", control.take(Heartbeat)),
            web.post("/v1/swaps", control.take(Swap)),
            web.put("/v1/policies/p/references", control.take(Reference)),
            web.delete("/v1/engines/{id}", control.leave),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", control.port).start()
    settings = EngineSettings(
        engine_id="e1",
        policy="p",
        role=given["role"],
        control=f"http://127.0.0.1:{control.port}",
        port=port,
        url=f"http://127.0.0.1:{port}",
        model=control.export("v0"),
        version="v0",
        weights_root=control.checkpoints,
        drain_seconds=2.5,
    )

    async def launch(version: Version) -> Child:
        stage.launched.append(version.version)
        environment = {**os.environ, "EVERLOOP_ENGINE_TOKEN": "engine-token"}
        return await Child.start(
            [sys.executable, "-m", "tests.fake_vllm", str(port), version.version, str(crash)], environment
        )

    stage = Stage(control, crash)
    async with aiohttp.ClientSession() as session:
        stage.agent = Agent(settings, session, "control-token", "engine-token", launch)
        running = asyncio.create_task(stage.agent.run())
        yield stage
        stage.agent.stop()
        await asyncio.wait_for(running, 60)
    await runner.cleanup()
