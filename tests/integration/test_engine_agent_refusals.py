"""An engine's agent and versions that it cannot serve: they do not start or swap in, or are not what they should be."""

import asyncio

import pytest

from ingest.contracts.fleet import EngineState, Heartbeat, Reference, Swap
from tests.agent_stage import Stage
from tests.fake_vllm import BUILD

pytestmark = pytest.mark.integration


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
