"""An engine's agent: how it starts, which versions it loads and how, and what it does when others go away."""

import asyncio

import pytest

from ingest.contracts.fleet import EngineState, Heartbeat, Reference, Swap
from tests.agent_stage import Stage
from tests.fake_vllm import BUILD

pytestmark = pytest.mark.integration


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


async def test_stop_drains_ends_the_child_and_leaves(stage: Stage) -> None:
    await stage.until_ready("v0")
    stage.agent.stop()
    async with asyncio.timeout(180):
        while not stage.control.left:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert EngineState.DRAINING in {beat.state for beat in stage.control.all(Heartbeat)}
