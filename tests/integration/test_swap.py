"""The test that holds the product together: weights change under running requests, and nothing is mixed.

Every token of answers that were generated across two swaps is scored again in torch fp32 with the weights that its
span names. Agreement is bf16's rounding (0.02 per token on average); with the other version it is 2 nats.
"""

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.fleet import Reference, Swap
from ingest.contracts.tap import TapRecord
from serving.fleet.swap import FLOOR
from tests.engines import Answer, Engine, Progress
from tests.tiny_models import score_many

pytestmark = [pytest.mark.engine, pytest.mark.integration]

RIGHT_WEIGHTS, WRONG_WEIGHTS = 0.1, 0.5
"""Bounds on the mean difference per token, in nats: bf16 against fp32 gives 0.02, another random model 2."""


async def answer(engine: Engine, tokens: int, i: int = 0, progress: Progress | None = None) -> Answer:
    body = {"messages": [{"role": "user", "content": f"Tell me about {i}."}], "max_tokens": tokens}
    body |= {"temperature": 1.0, "ignore_eos": True, "stream": True}
    return await engine.ask("/v1/chat/completions", body, progress=progress)


def differences(root: Path, records: list[TapRecord], versions: list[str]) -> dict[tuple[str, str], float]:
    """Mean |engine − torch| by (version of the span, version that torch used)."""
    found: dict[tuple[str, str], list[float]] = {}
    calls = [record.calls[0] for record in records]
    pairs = [(list(unpack_ids(c.prompt_ids)), list(unpack_ids(c.samples[0].output_ids))) for c in calls]
    for version in versions:
        for call, row in zip(calls, score_many(root / version, pairs), strict=True):
            logged = unpack_logprobs(call.samples[0].logprobs)
            for span in call.samples[0].weight_versions:
                gaps = [abs(logged[i] - row[i]) for i in range(span.start, span.end)]
                found.setdefault((span.version, version), []).extend(gaps)
    return {key: sum(gaps) / len(gaps) for key, gaps in found.items()}


def check_proven(swap: Swap, reference: Reference) -> None:
    assert swap.error == ""
    assert swap.checksum_equal is True
    assert swap.logprob_difference is not None
    assert swap.logprob_difference <= reference.noise + FLOOR
    assert 0 < swap.load_ms < swap.pause_ms <= swap.total_ms


async def check_tokens_follow_their_spans(engine: Engine, references: dict[str, Reference], a: str, b: str) -> None:
    """Two swaps, a → b → a, each after all requests have streamed some tokens since the last."""
    streams = [Progress() for _ in range(6)]
    asking = [asyncio.create_task(answer(engine, 800, i, stream)) for i, stream in enumerate(streams)]
    for version in (b, a):
        await asyncio.gather(*(stream.grows() for stream in streams))
        status, swap = await engine.swap(version, references[version])
        assert status == 200, swap
        check_proven(swap, references[version])
    records = [got.record for got in await asyncio.gather(*asking) if got.record is not None]
    assert len(records) == 6
    seen = {span.version for record in records for span in record.calls[0].samples[0].weight_versions}
    assert seen == {a, b}
    assert any(len(record.calls[0].samples[0].weight_versions) == 3 for record in records)
    for (span_version, torch_version), gap in differences(engine.root, records[:4], [a, b]).items():
        if span_version == torch_version:
            assert gap < RIGHT_WEIGHTS, f"tokens labelled {span_version} differ by {gap} from it"
        else:
            assert gap > WRONG_WEIGHTS, f"{span_version} and {torch_version} are too alike for this test: {gap}"
    assert (await engine.state()).version == a


async def test_tokens_follow_their_spans_in_a_tied_model(tied_engine: Engine, references: dict[str, Reference]) -> None:
    await check_tokens_follow_their_spans(tied_engine, references, "t0", "t1")


async def test_tokens_follow_their_spans_in_an_untied_model(
    untied_engine: Engine, references: dict[str, Reference]
) -> None:
    await check_tokens_follow_their_spans(untied_engine, references, "u0", "u1")


async def check_t0_serves(engine: Engine) -> None:
    info = await engine.state()
    assert (info.version, info.usable, info.swapping) == ("t0", True, False)
    record = (await answer(engine, 16)).record
    assert record is not None
    assert differences(engine.root, [record], ["t0"])["t0", "t0"] < RIGHT_WEIGHTS


async def test_a_stale_head_is_caught_although_checksums_are_equal(
    tied_engine: Engine, references: dict[str, Reference], stale_head: Path
) -> None:
    status, swap = await tied_engine.swap("t1", references["t1"])
    assert status == 409
    assert swap.checksum_equal is True
    assert swap.logprob_difference > WRONG_WEIGHTS
    assert "t1 was not taken in: logprobs on the fixed sequences differ" in swap.error
    assert "t0 serves on" in swap.error
    await check_t0_serves(tied_engine)


async def test_other_weights_than_the_references_are_rolled_back_under_load(
    tied_engine: Engine, references: dict[str, Reference]
) -> None:
    progress = Progress()
    asking = asyncio.create_task(answer(tied_engine, 800, progress=progress))
    await progress.grows()
    status, swap = await tied_engine.swap("t1", references["t1"], path=tied_engine.path("t2"))
    assert (status, swap.checksum_equal) == (409, False)
    assert "checksum" in swap.error
    record = (await asking).record
    assert record is not None
    assert [(s.version, s.start, s.end) for s in record.calls[0].samples[0].weight_versions] == [("t0", 0, 800)]
    assert differences(tied_engine.root, [record], ["t0"])["t0", "t0"] < RIGHT_WEIGHTS
    await check_t0_serves(tied_engine)


async def test_the_served_version_is_a_swap_of_no_time(tied_engine: Engine, references: dict[str, Reference]) -> None:
    status, swap = await tied_engine.swap("t0", references["t0"])
    assert (status, swap.error, swap.total_ms) == (200, "", 0.0)


async def test_what_must_not_be_loaded_is_refused_before_anything_stops(
    tied_engine: Engine, references: dict[str, Reference], tmp_path: Path
) -> None:
    root, reference = tied_engine.root, references["t1"]
    shutil.copytree(root / "t1", tmp_path / "outside")
    shutil.copytree(root / "t1", root / "cut")
    with (root / "cut" / "model.safetensors").open("r+b") as f:
        f.truncate(1 << 20)
    for sentence, given, path in (
        ("outside this engine's weights root", reference, str(tmp_path / "outside")),
        ("not a folder", reference, str(root / "nowhere")),
        ("its header says", reference, str(root / "cut")),
        ("not of the served architecture", reference, str(root / "u1")),
        ("no reference of t1", None, None),
        ("no reference of t1", references["t0"], None),
        ("is of build", replace(reference, build="another"), None),
    ):
        status, error = await tied_engine.swap("t1", given, path=path)
        assert status == 422, error
        assert sentence in error
    await check_t0_serves(tied_engine)
