"""Two agents and the real control process: a rollout never takes both engines from users, whatever becomes of it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.fleet import Engine, Refusal, Version
from pipelines.stack.addresses import free_port
from serving.engines.agent import Agent
from serving.engines.child import Child
from serving.engines.launch import EngineSettings
from tests.checkpoint_folders import make_checkpoint
from tests.integration.serving_stack import CONTROL_TOKEN, ENGINE_TOKEN, Stack

pytestmark = pytest.mark.integration


class Fleet:
    """Two engines of the policy `policy`, as control knows them."""

    def __init__(self, stack: Stack, checkpoints: Path) -> None:
        self._stack, self._checkpoints = stack, checkpoints
        self.fewest_ready = 2

    def export(self, version: str) -> Path:
        folder = self._checkpoints / "policy" / version
        return (folder if folder.exists() else make_checkpoint(self._checkpoints, version, policy="policy")) / EXPORT

    def desire(self, version: str) -> None:
        body = {"version": version, "path": str(self.export(version))}
        self._stack.control("PUT", "/v1/policies/policy/desired", body).raise_for_status()

    def loads(self) -> list[str]:
        return [swap["load"] for swap in self._stack.control("GET", "/v1/swaps").json()["swaps"]]

    async def until(self, condition: Callable[[list[Engine]], bool]) -> None:
        """Watches the fleet until `condition`, and notes the fewest engines that were ready at any time."""
        async with asyncio.timeout(180):
            while True:
                answer = await asyncio.to_thread(self._stack.control, "GET", "/v1/snapshot")
                engines = msgspec.convert(answer.json()["engines"], list[Engine])
                self.fewest_ready = min(self.fewest_ready, sum(engine.state == "ready" for engine in engines))
                if condition(engines):
                    return
                await asyncio.sleep(0.1)

    async def until_ready(self, version: str) -> None:
        await self.until(lambda engines: [(e.state, e.version) for e in engines] == [("ready", version)] * 2)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    stack = Stack(tmp_path)
    await asyncio.to_thread(stack.start_control)
    fleet = Fleet(stack, tmp_path / "checkpoints")
    policy = {"name": "policy", "desired": {"version": "v0", "path": str(fleet.export("v0"))}}
    stack.control("PUT", "/v1/policies/policy", policy).raise_for_status()
    async with aiohttp.ClientSession() as session:
        agents = [agent(f"e{n}", stack, fleet, session) for n in range(2)]
        running = [asyncio.create_task(agent.run()) for agent in agents]
        await fleet.until_ready("v0")
        fleet.fewest_ready = 2
        yield fleet
        for one in agents:
            one.stop()
        await asyncio.wait_for(asyncio.gather(*running), 60)
    await asyncio.to_thread(stack.stop_all)


def agent(name: str, stack: Stack, fleet: Fleet, session: aiohttp.ClientSession) -> Agent:
    port = free_port()

    async def launch(version: Version) -> Child:
        words = [sys.executable, "-m", "tests.fake_vllm", str(port), version.version, str(stack.home / name / "crash")]
        return await Child.start(words, {**os.environ, "EVERLOOP_ENGINE_TOKEN": ENGINE_TOKEN})

    settings = EngineSettings(
        engine_id=name,
        policy="policy",
        control=stack.control_url,
        port=port,
        url=f"http://127.0.0.1:{port}",
        model=fleet.export("v0"),
        version="v0",
        weights_root=stack.home / "checkpoints",
        drain_seconds=2.5,
    )
    return Agent(settings, session, CONTROL_TOKEN, ENGINE_TOKEN, launch)


async def test_a_version_without_a_reference_is_loaded_cold_by_one_and_swapped_in_by_the_other(fleet: Fleet) -> None:
    fleet.desire("v1")
    await fleet.until_ready("v1")
    assert fleet.loads() == ["cold", "hot"]
    assert fleet.fewest_ready == 1


async def test_a_version_that_nobody_takes_in_leaves_the_one_before_in_service(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.refusals.FIRST_SECONDS", 2.0)

    def refused(engine: Engine) -> bool:
        return isinstance(engine.refusal, Refusal) and engine.refusal.version == "broken-1"

    fleet.desire("broken-1")
    await fleet.until(lambda engines: all(refused(e) and e.refusal and e.refusal.attempts >= 2 for e in engines))
    fleet.desire("v0")
    await fleet.until(lambda engines: all((e.state, e.version) == ("ready", "v0") for e in engines))
    await fleet.until(lambda engines: not any(e.refusal or e.error for e in engines))
    assert set(fleet.loads()) == {"cold"}
    assert fleet.fewest_ready == 1
