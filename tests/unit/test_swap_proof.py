"""When a swap counts as proven, and the order in which an engine's weights change: with an engine of a few lines."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ingest.contracts.fleet import Reference, Version
from serving.fleet.swap import (
    FLOOR,
    Measurement,
    ScoreRequest,
    SwapRequest,
    contradiction,
    difference,
    noise,
    objection,
)
from serving.vllm_plugin.weights import EngineUnusable, SwapRefused, Weights
from tests.unit.test_engine_folder import SHAPES, write

SEQUENCES = ((1, 2, 3),)
BUILD = "vllm-x/cpu"


def reference(version: str, score: float, checksum: str = "", build: str = BUILD, noise: float = 0.0) -> Reference:
    rows = ((score, score),)
    return Reference(version=version, build=build, checksum=checksum, sequences=SEQUENCES, logprobs=rows, noise=noise)


def measured(score: float, checksum: str = "c") -> Measurement:
    return Measurement(checksum=checksum, sequences=SEQUENCES, logprobs=((score, score),))


def test_a_difference_is_the_largest_and_never_hides_what_cannot_be_compared() -> None:
    assert difference(((1.0, 2.0),), ((1.0, 2.5),)) == 0.5
    assert difference(((1.0,),), ((1.0, 2.0),)) == float("inf")
    assert difference(((1.0,),), ()) == float("inf")
    assert difference(((float("nan"),),), ((1.0,),)) == float("inf")
    assert noise([((1.0,),), ((1.25,),), ((0.5,),)]) == 0.5
    assert noise([((1.0,),)]) == 0.0


def test_a_swap_is_proven_by_both_checksum_and_logprobs() -> None:
    ours = reference("v", -1.0, checksum="c")
    assert objection(measured(-1.0), ours) == ""
    assert objection(measured(-1.0 - FLOOR / 2), ours) == ""
    assert "checksum" in objection(measured(-1.0, checksum="d"), ours)
    assert "logprobs" in objection(measured(-1.0 - 3 * FLOOR), ours)
    assert "logprobs" in objection(measured(float("nan")), ours)
    assert objection(measured(-1.0 - 3 * FLOOR), reference("v", -1.0, checksum="c", noise=3 * FLOOR)) == ""


def test_a_cold_load_must_be_what_an_earlier_one_was() -> None:
    kept = reference("v", -1.0, checksum="c")
    assert contradiction(reference("v", -1.0 - FLOOR / 2, checksum="c"), kept) == ""
    assert "checksum" in contradiction(reference("v", -1.0, checksum="d"), kept)
    assert "logprobs" in contradiction(reference("v", -2.0, checksum="c", noise=5.0), kept)
    others = replace(reference("v", -2.0, checksum="c"), sequences=((9, 9, 9),))
    assert contradiction(others, kept) == ""
    assert "checksum" in contradiction(replace(others, checksum="d"), kept)


class FakeEngine:
    """Weights are a folder's name; a score is what `scores` has for it; `broken` folders raise on load."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores
        self.broken: set[str] = set()
        self.loaded = "a"
        self.version = "a"
        self.paused = False
        self.log: list[str] = []
        self.sampled: list[tuple[str, str]] = []

    async def pause_generation(self, *, mode: str, clear_cache: bool = True) -> None:
        assert (mode, clear_cache, self.paused) == ("keep", True, False)
        self.paused = True
        self.log.append("pause")

    async def resume_generation(self) -> None:
        self.paused = False
        self.log.append("resume")
        self.sampled.append((self.version, self.loaded))

    async def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple = (), kwargs: dict | None = None
    ) -> list[Any]:
        assert self.paused
        if method == "reload_weights":
            name = Path((kwargs or {})["weights_path"]).name
            self.loaded = f"half of {name}" if name in self.broken else name
            self.log.append(f"load {name}")
            if name in self.broken:
                raise OSError("disk")
        if method == "everloop_score":
            score = self.scores.get(self.loaded, 99.0)
            return [None, [[score] * (len(ids) - 1) for ids in (kwargs or {})["sequences"]]]
        return [None]

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return [{"rank0:w": self.loaded}]

    async def update_weight_version(self, new_version: str) -> None:
        assert self.paused
        self.version = new_version
        self.log.append(f"label {new_version}")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"a": -1.0, "b": -2.0, "c": -3.0})


@pytest.fixture
def weights(engine: FakeEngine, tmp_path: Path) -> Weights:
    for name in "abc":
        write(tmp_path / name, SHAPES)
    return Weights(engine, Version("a", str(tmp_path / "a")), tmp_path, BUILD, 1024, False, SEQUENCES)


async def checksum_of(folder: str) -> str:
    """The engine's checksum of a cold load of `folder`."""
    fake = FakeEngine({})
    fake.loaded = folder
    cold = Weights(fake, Version(folder, folder), Path("/"), BUILD, 1, False, SEQUENCES)
    return (await cold.measure_reference(ScoreRequest())).checksum


async def ask(weights: Weights, tmp_path: Path, version: str, score: float, **more: Any) -> Any:
    ref = reference(version, score, checksum=await checksum_of(version))
    target = Version(version, str(tmp_path / more.pop("folder", version)))
    return await weights.swap(
        SwapRequest(engine_id="e", policy="p", target=target, reference=more.get("reference", ref))
    )


async def test_the_order_of_a_swap(engine: FakeEngine, weights: Weights, tmp_path: Path) -> None:
    swap = await ask(weights, tmp_path, "b", -2.0)
    assert engine.log == ["pause", "load b", "label b", "resume"]
    assert (swap.error, swap.checksum_equal, swap.logprob_difference) == ("", True, 0.0)
    assert (weights.info().version, weights.info().usable) == ("b", True)


async def test_the_same_version_again_stops_nothing(engine: FakeEngine, weights: Weights, tmp_path: Path) -> None:
    assert (await ask(weights, tmp_path, "a", -1.0)).error == ""
    assert engine.log == []


@pytest.mark.parametrize(("score", "folder"), [(-2.5, "b"), (-2.0, "c")], ids=["behaves otherwise", "other bytes"])
async def test_what_is_not_proven_is_undone_before_anything_is_sampled(
    engine: FakeEngine, weights: Weights, tmp_path: Path, score: float, folder: str
) -> None:
    swap = await ask(weights, tmp_path, "b", score, folder=folder)
    assert "b was not taken in" in swap.error
    assert "a serves on" in swap.error
    assert engine.log == ["pause", f"load {folder}", "load a", "label a", "resume"]
    assert engine.sampled == [("a", "a")]
    assert (weights.info().version, weights.info().usable) == ("a", True)


async def test_a_load_that_breaks_is_undone(engine: FakeEngine, weights: Weights, tmp_path: Path) -> None:
    engine.broken = {"b"}
    swap = await ask(weights, tmp_path, "b", -2.0)
    assert "OSError" in swap.error
    assert engine.sampled == [("a", "a")]


async def test_an_engine_that_cannot_go_back_never_samples_again(
    engine: FakeEngine, weights: Weights, tmp_path: Path
) -> None:
    engine.broken = {"a", "b"}
    with pytest.raises(EngineUnusable, match="could not be brought back"):
        await ask(weights, tmp_path, "b", -2.0)
    assert engine.paused
    assert engine.sampled == []
    assert not weights.info().usable
    with pytest.raises(EngineUnusable, match="restart"):
        await ask(weights, tmp_path, "c", -3.0)


async def test_a_cancelled_swap_does_not_release_unproven_weights(
    engine: FakeEngine, weights: Weights, tmp_path: Path
) -> None:
    started = asyncio.Event()

    async def checksums() -> list[dict[str, str]]:
        if engine.loaded == "b":
            started.set()
            await asyncio.sleep(60)
        return [{"rank0:w": engine.loaded}]

    engine.compute_weight_checksums = checksums  # type: ignore[method-assign]
    swapping = asyncio.create_task(ask(weights, tmp_path, "b", -2.0))
    await started.wait()
    swapping.cancel()
    await asyncio.gather(swapping, return_exceptions=True)
    assert engine.paused
    assert not weights.info().usable


async def test_refusals_stop_nothing(engine: FakeEngine, weights: Weights, tmp_path: Path) -> None:
    for given, sentence in (
        (None, "no reference of b"),
        (reference("a", -1.0), "no reference of b"),
        (reference("b", -2.0, build="vllm-y"), "of build vllm-y"),
    ):
        with pytest.raises(SwapRefused, match=sentence):
            await ask(weights, tmp_path, "b", -2.0, reference=given)
    with pytest.raises(SwapRefused, match="not a folder"):
        await ask(weights, tmp_path, "b", -2.0, folder="gone")
    assert engine.log == []


async def test_a_reference_has_its_own_noise(engine: FakeEngine, weights: Weights) -> None:
    scores = iter([-1.0, -1.5, -1.25])

    class Wobbly(dict):  # type: ignore[type-arg]
        def get(self, key: object, default: object = None) -> float:
            return next(scores)

    engine.scores = Wobbly()
    ref = await weights.measure_reference(ScoreRequest(repeats=3))
    assert (ref.version, ref.build, ref.noise) == ("a", BUILD, 0.5)
    assert engine.log == ["pause", "resume"]
