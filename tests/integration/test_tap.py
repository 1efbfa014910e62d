"""The tap in a real vLLM: what it records is what the engine made, and the caller's own answer does not change."""

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest

from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.tap import TapRecord, decode_tap
from tests.engines import POLICY, TOKEN, Answer, Engine

pytestmark = [pytest.mark.engine, pytest.mark.integration]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}


def body_of(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "Name a river."}]} if path == CHAT else {"prompt": "A river is"}
    return {**prompt, **GREEDY, **more}


def outputs(record: TapRecord | None) -> list[list[int]]:
    assert record is not None
    return [list(unpack_ids(sample.output_ids)) for call in record.calls for sample in call.samples]


def check_whole(record: TapRecord | None, version: str) -> None:
    """Ids and logprobs match, spans tile, and everything that a record must say is said."""
    assert record is not None
    assert record.engine_build.startswith("vllm-")
    assert record.first_token_at is not None
    for call in record.calls:
        assert len(unpack_ids(call.prompt_ids)) > 0
        assert call.sampling["logprobs_mode"] == "raw_logprobs"
        for sample in call.samples:
            ids = unpack_ids(sample.output_ids)
            assert len(ids) == len(unpack_logprobs(sample.logprobs)) > 0
            assert [(s.version, s.start, s.end) for s in sample.weight_versions] == [(version, 0, len(ids))]


def without_ids(value: Any) -> Any:
    """A response body without what differs from call to call."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "created")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_the_callers_answer_is_the_same_with_and_without_the_tap(
    tied_engine: Engine, path: str, stream: bool, logprobs: bool
) -> None:
    asked: Any = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    body = body_of(path, stream=stream, **(asked if logprobs else {}))
    plain = await tied_engine.ask(path, body, tap=False)
    tapped = await tied_engine.ask(path, body)
    assert plain.record is None
    check_whole(tapped.record, (await tied_engine.state()).version)
    read = (lambda answer: answer.events) if stream else (lambda answer: answer.json)
    assert without_ids(read(tapped)) == without_ids(read(plain))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_ids_equal_vllms_own_for_each_of_several_samples(tied_engine: Engine, path: str) -> None:
    body = body_of(path, n=3, temperature=1.0, return_token_ids=True)
    answer = await tied_engine.ask(path, body)
    check_whole(answer.record, (await tied_engine.state()).version)
    assert outputs(answer.record) == [choice["token_ids"] for choice in answer.json["choices"]]
    assert len({tuple(ids) for ids in outputs(answer.record)}) == 3


async def test_streamed_samples_are_kept_apart(tied_engine: Engine) -> None:
    answer = await tied_engine.ask(CHAT, body_of(CHAT, n=3, temperature=1.0, stream=True, return_token_ids=True))
    check_whole(answer.record, (await tied_engine.state()).version)
    theirs: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for event in answer.events:
        for choice in event["choices"]:
            theirs[choice["index"]] += choice.get("token_ids") or []
    assert outputs(answer.record) == [theirs[i] for i in range(3)]


async def test_several_prompts_in_one_call_are_several_engine_calls(tied_engine: Engine) -> None:
    answer = await tied_engine.ask(COMPLETIONS, body_of(COMPLETIONS, prompt=["One", "Two words"]))
    assert answer.record is not None
    assert len(answer.record.calls) == 2
    assert [len(call.samples) for call in answer.record.calls] == [1, 1]


async def test_concurrent_calls_do_not_mix(tied_engine: Engine) -> None:
    async def ask(i: int) -> Answer:
        body = body_of(CHAT, temperature=1.0, stream=bool(i % 2), return_token_ids=True)
        body["messages"] = [{"role": "user", "content": f"Count from {i}."}]
        return await tied_engine.ask(CHAT, body)

    for i, answer in enumerate(await asyncio.gather(*(ask(i) for i in range(12)))):
        if i % 2:
            theirs = [t for event in answer.events for c in event["choices"] for t in c.get("token_ids") or []]
        else:
            theirs = answer.json["choices"][0]["token_ids"]
        assert outputs(answer.record) == [theirs]


async def test_an_error_before_sampling_is_vllms_own(tied_engine: Engine) -> None:
    answer = await tied_engine.ask(CHAT, {"messages": []})
    plain = await tied_engine.ask(CHAT, {"messages": []}, tap=False)
    assert answer.status == plain.status >= 400
    assert (answer.body, answer.record) == (plain.body, None)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"logit_bias": {"5": 10}}, "logit_bias"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "grammar"),
    ],
)
async def test_constrained_sampling_is_said(tied_engine: Engine, more: dict[str, Any], reason: str | None) -> None:
    answer = await tied_engine.ask(CHAT, body_of(CHAT, **more))
    assert answer.record is not None, answer.body
    assert [call.constrained for call in answer.record.calls] == [reason]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_leaves_an_aborted_record(tied_engine: Engine, stream: bool) -> None:
    name = f"hang-up-{stream}"
    body = body_of(CHAT, max_tokens=900, temperature=1.0, stream=stream)
    asking = asyncio.create_task(tied_engine.ask(CHAT, body, request_id=name))
    await until_in_flight(tied_engine)
    await asyncio.sleep(1.0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    check_aborted(await stored(tied_engine, name), await tied_engine.state())


async def test_the_abort_route_ends_the_response_with_its_record(tied_engine: Engine) -> None:
    body = body_of(CHAT, max_tokens=900, temperature=1.0, stream=True, n=2)
    asking = asyncio.create_task(tied_engine.ask(CHAT, body, request_id="cut"))
    await until_in_flight(tied_engine)
    await asyncio.sleep(1.0)
    assert await tied_engine.plugin("POST", "/everloop/abort", {"request_id": "cut"}) == (200, b'{"aborted":true}')
    answer = await asking
    check_aborted(answer.record, await tied_engine.state())
    assert await stored(tied_engine, "cut") == answer.record


async def test_records_and_routes_need_the_token(tied_engine: Engine) -> None:
    await tied_engine.ask(CHAT, body_of(CHAT), request_id="mine")
    assert (await tied_engine.plugin("GET", "/everloop/records/mine"))[0] == 200
    assert (await tied_engine.plugin("GET", "/everloop/records/other"))[0] == 404
    for method, path in (
        ("GET", "/everloop/records/mine"),
        ("GET", "/everloop/state"),
        ("POST", "/everloop/abort"),
        ("POST", "/everloop/swap"),
        ("POST", "/everloop/score"),
    ):
        status, data = await tied_engine.plugin(method, path, {}, token="wrong")
        assert status == 401, (path, data)
        assert "token" in json.loads(data)["error"]


async def test_vllms_unguarded_routes_are_closed_to_callers_without_the_token(tied_engine: Engine) -> None:
    """vLLM's API key guards some prefixes only: /invocations is a whole completion."""
    body = {"model": POLICY, **body_of(CHAT)}
    async with aiohttp.ClientSession(tied_engine.url) as session:
        for path in ("/invocations", "/tokenize", "/detokenize", "/v1/chat/completions"):
            async with session.post(path, json=body) as response:
                assert response.status == 401, path
        for path, status in (("/health", 200), ("/version", 200), ("/openapi.json", 401)):
            async with session.get(path) as response:
                assert response.status == status, path
        async with session.post("/invocations", json=body, headers={"authorization": f"Bearer {TOKEN}"}) as response:
            assert response.status == 200


async def until_in_flight(engine: Engine) -> None:
    while not (await engine.state()).in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def stored(engine: Engine, name: str) -> TapRecord:
    status, data = await engine.plugin("GET", f"/everloop/records/{name}?wait=20")
    assert status == 200, data
    return decode_tap(data)


def check_aborted(record: TapRecord | None, info: msgspec.Struct) -> None:
    check_whole(record, info.version)  # type: ignore[attr-defined]
    assert record is not None
    for sample in record.calls[0].samples:
        assert sample.finish == "abort"
        assert 0 < len(unpack_ids(sample.output_ids)) < 900
