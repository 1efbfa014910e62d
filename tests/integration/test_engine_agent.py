"""An engine's agent with a real child process, a stand-in for vLLM, and a control of a few lines."""

import asyncio
import os
import signal
import subprocess
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

pytestmark = pytest.mark.integration

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


async def test_a_start_is_measured_before_it_is_ready(stage: Stage) -> None:
    beat = await stage.until_ready("v0")
    assert (beat.build, beat.max_model_len, beat.token, beat.role) == (BUILD, 64, "engine-token", "serve")
    assert stage.control.all(Heartbeat)[0].state == EngineState.JOINING
    first_ready = next(i for i, t in enumerate(stage.control.told) if getattr(t, "state", "") == EngineState.READY)
    assert any(isinstance(told, Reference) for told in stage.control.told[:first_ready])


async def test_a_version_with_a_reference_is_swapped_in_hot_and_reported(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("v1")
    await stage.until_ready("v1")
    (swap,) = stage.control.all(Swap)
    assert (swap.load, swap.from_version, swap.to_version, swap.error) == ("hot", "v0", "v1", "")
    assert len(stage.control.all(Reference)) == 1


@pytest.mark.parametrize("build", [None, "another"])
async def test_without_a_reference_of_its_build_a_version_is_loaded_cold(stage: Stage, build: str | None) -> None:
    await stage.until_ready("v0")
    stage.control.assign("v1", build=build)
    await stage.until_ready("v1")
    (swap,) = stage.control.all(Swap)
    assert (swap.load, swap.error) == ("cold", "")
    assert [reference.version for reference in stage.control.all(Reference)] == ["v0", "v1"]


@pytest.mark.parametrize("version", ["rolled-1", "refused-1"])
async def test_a_swap_that_fails_leaves_the_version_before_in_service(stage: Stage, version: str) -> None:
    await stage.until_ready("v0")
    stage.control.assign(version)
    beat = await stage.until(lambda beat: bool(beat.error))
    assert (beat.state, beat.version) == (EngineState.READY, "v0")
    assert beat.refusal is not None
    assert (beat.refusal.version, beat.refusal.attempts, beat.refusal.standing) == (version, 1, True)
    assert version.split("-")[0] in beat.error
    assert beat.refusal.error == beat.error
    await asyncio.sleep(1.5)
    assert len(stage.control.all(Swap)) == 1  # it is left alone for a while
    stage.control.assign("v1")
    beat = await stage.until_ready("v1")
    assert (beat.error, beat.refusal) == ("", None)


async def test_it_says_what_it_refuses_until_something_else_is_asked_of_it(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("broken-1", build=None)
    beat = await stage.until(lambda beat: beat.refusal is not None and beat.state == EngineState.READY)
    assert (beat.version, beat.refusal.version) == ("v0", "broken-1")  # also once v0 is loaded again
    assert "vLLM ended with 3" in beat.error
    stage.control.assign("v0")
    await stage.until(lambda beat: beat.refusal is None)


async def test_an_unusable_engine_is_started_anew_on_what_it_served(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("stuck-1")
    await stage.until_loaded_cold("v0", "v0")
    await stage.until_ready("v0")
    assert stage.control.all(Swap)[0].error


async def test_a_swap_whose_answer_was_lost_counts_when_the_engine_says_so(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("done-1")
    await stage.until_ready("done-1")
    (swap,) = stage.control.all(Swap)
    assert (swap.from_version, swap.to_version, swap.load, swap.error) == ("v0", "done-1", "hot", "")
    assert stage.launched == ["v0"]


@pytest.mark.parametrize(("version", "launched"), [("undone-1", ["v0"]), ("unclear-1", ["v0", "v0"])])
async def test_an_engine_that_does_not_say_what_it_serves_after_a_swap_is_started_anew(
    stage: Stage, version: str, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.process.SETTLE_SECONDS", 3.0)
    await stage.until_ready("v0")
    stage.control.assign(version)
    beat = await stage.until(lambda beat: beat.refusal is not None and beat.state == EngineState.READY)
    assert (beat.version, beat.refusal.version) == ("v0", version)
    assert stage.launched == launched


async def test_a_version_that_does_not_start_gives_way_to_the_one_before(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("broken-1", build=None)
    await stage.until(lambda beat: bool(stage.control.all(Swap)))
    assert "vLLM ended with 3" in stage.control.all(Swap)[0].error
    await stage.until_ready("v0")


async def test_a_cold_load_that_control_contradicts_gives_way_to_the_version_before(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.damaged = {"v1"}
    stage.control.assign("v1", build=None)
    await stage.until(lambda beat: bool(stage.control.all(Swap)))
    assert "not what the first one was" in stage.control.all(Swap)[0].error
    await stage.until_ready("v0")
    assert stage.ready_on() == {"v0"}


async def test_a_cold_load_that_is_not_what_it_was_never_serves(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.damaged.touch()
    stage.crash.touch()
    beat = await stage.until(lambda beat: beat.state == EngineState.FAILED)
    assert "v0 was loaded and does not behave as it should: the engine's checksum" in beat.error
    assert len(stage.control.all(Reference)) == 1
    stage.damaged.unlink()
    assert (await stage.until_ready("v0")).error == ""


@pytest.mark.parametrize("stage", [{"role": "evaluation"}], indirect=True)
async def test_weights_whose_logprobs_are_not_finite_are_refused(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("infinite-1", build=None)
    beat = await stage.until(lambda beat: beat.refusal is not None)
    assert "infinite-1 could not be measured: its logprobs on the fixed sequences are not finite numbers" in beat.error
    stage.control.assign("v1", build=None)
    await stage.until_ready("v1")
    assert stage.launched == ["v0", "infinite-1", "v1"]


@pytest.mark.parametrize("build", [BUILD, None], ids=["hot", "cold"])
async def test_a_damaged_folder_is_refused_while_the_version_before_serves(stage: Stage, build: str | None) -> None:
    await stage.until_ready("v0")
    (stage.control.export("v1") / "model.safetensors").write_bytes(b"weights of xx")
    stage.control.assign("v1", build=build)
    beat = await stage.until(lambda beat: bool(beat.error))
    assert (beat.state, beat.version) == (EngineState.READY, "v0")
    assert "differs from its manifest" in beat.error
    assert {told.state for told in stage.control.all(Heartbeat)} <= {EngineState.JOINING, EngineState.READY}
    assert len(stage.control.all(Swap)) == 1


async def test_a_damaged_folder_is_not_started(stage: Stage) -> None:
    await stage.until_ready("v0")
    weights = stage.control.export("v0") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    stage.crash.touch()
    assert "differs from its manifest" in (await stage.until(lambda beat: beat.state == EngineState.FAILED)).error
    weights.write_bytes(whole)
    await stage.until_ready("v0")


async def test_a_child_that_dies_is_started_again_on_the_last_version(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.assign("v1")
    await stage.until_ready("v1")
    stage.crash.touch()
    await stage.until_loaded_cold("v0", "v1")
    await stage.until_ready("v1")


async def test_it_goes_on_while_control_is_away_and_tells_it_afterwards(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.away = True
    stage.crash.touch()
    await stage.until_launched("v0", "v0")
    stage.control.assign("v1")
    stage.control.away = False
    await stage.until_ready("v1")
    assert [reference.version for reference in stage.control.all(Reference)] == ["v0", "v0"]
    assert [(swap.load, swap.to_version) for swap in stage.control.all(Swap)] == [("hot", "v1")]
    assert stage.launched == ["v0", "v0"]


async def test_nonsense_in_place_of_an_assignment_is_waited_out(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.control.garbled = True
    before = len(stage.control.told)
    await stage.until(lambda beat: len(stage.control.told) > before + 1)
    stage.control.assign("v1")
    stage.control.garbled = False
    await stage.until_ready("v1")


@pytest.mark.parametrize("stage", [{"assigned": "v1"}], indirect=True)
async def test_a_first_start_is_on_what_control_assigns(stage: Stage) -> None:
    await stage.until_ready("v1")
    assert stage.launched == ["v1"]


@pytest.mark.parametrize("stage", [{"assigned": "v1", "away": True}], indirect=True)
async def test_what_control_replaced_while_it_was_away_is_never_ready_nor_loaded_twice(stage: Stage) -> None:
    """Control is back while vLLM starts: it answers without a reference at first, for it does not know the build."""
    await stage.until_launched("v0")
    stage.control.away = False
    await stage.until_ready("v1")
    assert stage.launched == ["v0"]
    assert [(swap.load, swap.to_version) for swap in stage.control.all(Swap)] == [("hot", "v1")]
    assert {beat.version for beat in stage.control.all(Heartbeat)} >= {"v0", "v1"}
    assert stage.ready_on() == {"v1"}


async def test_an_engine_whose_version_does_not_start_any_more_starts_what_is_assigned(stage: Stage) -> None:
    await stage.until_ready("v0")
    (stage.control.export("v0") / "model.safetensors").unlink()
    stage.crash.touch()
    await stage.until(lambda beat: beat.state == EngineState.FAILED)
    stage.control.assign("v1")
    await stage.until_ready("v1")
    assert stage.launched == ["v0", "v1"]
    assert stage.control.all(Swap) == []


@pytest.mark.parametrize(
    ("stage", "launched"),
    [
        ({"role": "serve"}, ["v0", "flaky-1", "v0"]),
        ({"role": "evaluation"}, ["v0", "flaky-1", "flaky-1"]),
    ],
    indirect=["stage"],
)
async def test_only_who_serves_users_goes_back_to_the_version_before(
    stage: Stage, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.refusals.FIRST_SECONDS", 4.0)
    await stage.until_ready("v0")
    stage.control.assign("flaky-1", build=None)
    await stage.until_launched(*launched)


@pytest.mark.parametrize("stage", [{"role": "evaluation", "assigned": "broken-1"}], indirect=True)
async def test_an_evaluation_engine_comes_up_although_its_challenger_does_not(stage: Stage) -> None:
    beat = await stage.until_ready("v0")
    assert beat.refusal is not None
    assert beat.refusal.version == "broken-1"
    assert stage.launched == ["broken-1", "v0"]


async def test_stop_drains_ends_the_child_and_leaves(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.agent.stop()
    async with asyncio.timeout(180):
        while not stage.control.left:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert EngineState.DRAINING in {beat.state for beat in stage.control.all(Heartbeat)}


PARENT = """
import asyncio, os
from serving.engines.child import Child
async def main():
    child = await Child.start(["/bin/sh", "-c", "sleep 600 & sleep 600"], os.environ)
    print(child.pid, flush=True)
    await child.wait()
    print("ended", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def group(pid: int) -> list[int]:
    """The living processes of a group."""
    listing = subprocess.run(["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


@pytest.mark.parametrize("killed", ["parent", "child"])
async def test_kill_9_of_the_agent_or_of_the_first_process_leaves_nothing_behind(killed: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        async with asyncio.timeout(30):
            while len(group(pid)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            os.kill(parent.pid if killed == "parent" else pid, signal.SIGKILL)
            while group(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
