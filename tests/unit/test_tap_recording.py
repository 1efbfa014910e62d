"""The tap, its middleware and its store, with an engine client and an app of a few lines."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from ingest.contracts.arrays import unpack_ids, unpack_logprobs
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, decode_tap
from ingest.contracts.turn import Span
from serving.vllm_plugin.middleware import Shared, TapMiddleware
from serving.vllm_plugin.records import Records
from serving.vllm_plugin.routes import attach
from serving.vllm_plugin.tap import CURRENT, Call, Recording, Tap, constrained_by

TOKEN = "secret"


def params(kind: str = "DELTA", **more: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": None,
        "max_tokens": 4,
        "ignore_eos": False,
        "min_tokens": 0,
        "logprobs": None,
        "output_kind": SimpleNamespace(name=kind),
    }
    return SimpleNamespace(**{**fields, **more})


def output(*parts: tuple[int, list[int], str | None]) -> SimpleNamespace:
    """A `RequestOutput` of (index, ids, finish) parts; the logprob of token t is -t."""
    return SimpleNamespace(
        prompt_token_ids=[7, 8],
        outputs=[
            SimpleNamespace(
                index=index,
                token_ids=ids,
                logprobs=[{t: SimpleNamespace(logprob=-float(t))} for t in ids],
                finish_reason=finish,
                weight_versions=[SimpleNamespace(version="v", start=0, end=9)] if finish else None,
            )
            for index, ids, finish in parts
        ],
    )


class FakeClient:
    """Yields `outputs`; after an abort, what remains is one aborted output. The first `deaf` aborts are not heard."""

    def __init__(self, outputs: list[Any], wait: bool = False, deaf: int = 0) -> None:
        self.outputs = outputs
        self.model_config = SimpleNamespace(logprobs_mode="raw_logprobs")
        self.given: list[Any] = []
        self.asked = asyncio.Event()
        self.aborted = asyncio.Event()
        self.wait = wait
        self.deaf = deaf

    async def generate(self, prompt: Any, params: Any, request_id: str, **more: Any) -> AsyncGenerator[Any, None]:
        self.given.append(params)
        self.asked.set()
        for item in self.outputs:
            yield item
        if self.wait:
            await self.aborted.wait()
            yield output((0, [], "abort"))

    async def abort(self, ids: list[str]) -> None:
        if self.deaf:
            self.deaf -= 1
        else:
            self.aborted.set()


def app_of(shared: Shared, *, stream: bool, status: int = 200, sampling: Any = None, prompt: Any = "p") -> Any:
    """An ASGI app that runs the engine once and answers with a body of its own."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kind = b"text/event-stream" if stream else b"application/json"
        headers = [(b"content-type", kind), *([] if stream else [(b"content-length", b"2")])]
        started = False
        if shared.tap is not None:
            async for _ in shared.tap.generate(prompt, sampling or params(), "chatcmpl-1"):
                if stream and not started:
                    await send({"type": "http.response.start", "status": status, "headers": headers})
                    started = True
                if stream:
                    await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        if not started:
            await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if stream else b"{}", "more_body": False})

    return app


async def call(middleware: Any, *headers: tuple[bytes, bytes], receive: Any = None) -> tuple[dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def nothing() -> Any:
        await asyncio.sleep(60)

    scope = {"type": "http", "path": "/v1/chat/completions", "headers": list(headers)}
    await middleware(scope, receive or nothing, send)
    return dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])


def shared_with(client: FakeClient) -> Shared:
    shared = Shared(TOKEN)
    shared.tap, shared.engine_build = Tap(client, clock=lambda: 5.0), "build"
    return shared


OURS = (REQUEST_HEADER.encode(), TOKEN.encode())


async def test_a_json_response_gains_the_record_after_its_body() -> None:
    shared = shared_with(FakeClient([output((0, [1], None)), output((0, [2], "stop"))]))
    headers, body = await call(TapMiddleware(app_of(shared, stream=False), shared), OURS)
    length = int(headers[LENGTH_HEADER.encode()])
    assert int(headers[b"content-length"]) == len(body)
    assert body[:-length] == b"{}"
    record = decode_tap(body[-length:])
    assert (record.engine_build, record.first_token_at) == ("build", 5.0)
    sample = record.calls[0].samples[0]
    assert list(unpack_ids(sample.output_ids)) == [1, 2]
    assert list(unpack_logprobs(sample.logprobs)) == [-1.0, -2.0]
    assert (sample.finish, sample.weight_versions) == ("stop", (Span("v", 0, 9),))


async def test_a_stream_gains_one_event_at_its_end() -> None:
    shared = shared_with(FakeClient([output((0, [1], None)), output((0, [2], "stop"))]))
    _, body = await call(TapMiddleware(app_of(shared, stream=True), shared), OURS)
    head, tail = body.split(b"event: everloop\ndata: ")
    assert head == b"data: {}\n\n" * 2
    assert tail.endswith(b"\n\n")
    assert list(unpack_ids(decode_tap(b64decode(tail.strip())).calls[0].samples[0].output_ids)) == [1, 2]


@pytest.mark.parametrize("header", [(b"x-other", b"1"), (REQUEST_HEADER.encode(), b"wrong")])
async def test_other_callers_get_their_answer_untouched(header: tuple[bytes, bytes]) -> None:
    client = FakeClient([output((0, [1], "stop"))])
    shared = shared_with(client)
    headers, body = await call(TapMiddleware(app_of(shared, stream=False), shared), header)
    assert (headers[b"content-length"], body) == (b"2", b"{}")
    assert client.given[0].logprobs is None


@pytest.mark.parametrize(("outputs", "grows"), [([], False), ([output((0, [1], "stop"))], True)])
async def test_an_error_response_gains_a_record_only_if_something_was_sampled(outputs: list[Any], grows: bool) -> None:
    shared = shared_with(FakeClient(outputs))
    headers, body = await call(TapMiddleware(app_of(shared, stream=False, status=400), shared), OURS)
    assert body.startswith(b"{}")
    assert (LENGTH_HEADER.encode() in headers, len(body) > 2) == (grows, grows)


async def test_parameters_are_copied_before_logprobs_are_asked_for() -> None:
    client = FakeClient([output((0, [1], "stop"))])
    shared, theirs = shared_with(client), params()
    await call(TapMiddleware(app_of(shared, stream=False, sampling=theirs), shared), OURS)
    assert (theirs.logprobs, client.given[0].logprobs) == (None, 0)


async def test_a_client_that_hangs_up_aborts_the_engine_and_the_record_is_kept() -> None:
    shared = shared_with(FakeClient([output((0, [1, 2], None))], wait=True))

    async def disconnected() -> Any:
        return {"type": "http.disconnect"}

    inner = app_of(shared, stream=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        work = asyncio.create_task(inner(scope, receive, send))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        watch = asyncio.create_task(receive())
        await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
        assert work.done(), "the app heard of the disconnect before the engine had ended"
        watch.cancel()

    await call(TapMiddleware(app, shared), OURS, (b"x-request-id", b"r1"), receive=disconnected)
    data = await shared.records.get("r1", 0.0)
    assert data is not None
    sample = decode_tap(data).calls[0].samples[0]
    assert (sample.finish, list(unpack_ids(sample.output_ids))) == ("abort", [1, 2])
    assert shared.in_flight == 0


async def abort(shared: Shared, request_id: str) -> bool:
    """As the gateway asks for it."""
    app = FastAPI()
    attach(app, shared, lambda: pytest.fail("an abort needs no weights"))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://engine") as client:
        body = {"request_id": request_id}
        answer = await client.post("/everloop/abort", json=body, headers={REQUEST_HEADER: TOKEN})
    return answer.json()["aborted"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_that_comes_before_its_request_waits_for_it(stream: bool) -> None:
    shared = shared_with(FakeClient([output((0, [1], None))], wait=True))
    assert await abort(shared, "r1") is False
    async with asyncio.timeout(30):
        await call(TapMiddleware(app_of(shared, stream=stream), shared), OURS, (b"x-request-id", b"r1"))
    data = await shared.records.get("r1", 0.0)
    assert data is not None
    assert decode_tap(data).calls[0].samples[0].finish == "abort"


async def test_an_abort_that_vllm_does_not_understand_yet_is_said_again() -> None:
    client = FakeClient([output((0, [1], None))], wait=True, deaf=1)
    shared = shared_with(client)
    answer = asyncio.create_task(
        call(TapMiddleware(app_of(shared, stream=True), shared), OURS, (b"x-request-id", b"r1"))
    )
    await client.asked.wait()
    assert await abort(shared, "r1") is True
    async with asyncio.timeout(30):
        await answer


async def test_other_requests_are_not_aborted_and_what_is_remembered_is_bounded() -> None:
    records = Records(limit=2)
    for name in ("a", "b", "c"):
        assert records.cut(name) is None
    assert [records.start(name, Recording("build")) for name in ("a", "b", "c", "d", "c")] == [
        *(False, True, True, False, False)
    ]


def test_samples_are_keyed_by_index_and_whole_outputs_replace() -> None:
    call_ = Call("r", {}, None)
    call_.add(output((1, [5], None), (0, [6], None)), delta=True)
    call_.add(output((1, [7], "stop")), delta=True)
    assert [s.ids for _, s in sorted(call_.samples.items())] == [[6], [5, 7]]
    call_.add(output((0, [6, 9], "length")), delta=False)
    assert call_.samples[0].ids == [6, 9]
    assert call_.frozen().samples[0].finish == "length"


def test_what_changes_the_distribution_is_named() -> None:
    assert constrained_by("p", params()) is None
    assert constrained_by({"type": "token", "prompt_token_ids": [1]}, params()) is None
    assert constrained_by("p", params(logit_bias={1: 2.0}, min_tokens=3)) == "logit_bias+min_tokens"
    assert constrained_by("p", params(structured_outputs=object())) == "grammar"
    assert constrained_by("p", params(), lora_request=object()) == "adapter"


@pytest.mark.parametrize(("kind", "name"), [("multimodal", "media"), ("embeds", "prompt_embeds"), ("new", "new")])
async def test_a_prompt_that_its_ids_do_not_give_again_is_named(kind: str, name: str) -> None:
    shared = shared_with(FakeClient([output((0, [1], "stop"))]))
    prompt = {"type": kind, "prompt_token_ids": [7, 8]}
    headers, body = await call(TapMiddleware(app_of(shared, stream=False, prompt=prompt), shared), OURS)
    record = decode_tap(body[-int(headers[LENGTH_HEADER.encode()]) :])
    assert [c.constrained for c in record.calls] == [name]


async def test_the_store_is_bounded_and_forgets_the_oldest() -> None:
    records = Records(limit=2)
    for name in ("a", "b", "c"):
        recording = Recording("build")
        call_ = Call(name, {}, None)
        call_.add(output((0, [1], "stop")), delta=True)
        recording.calls.append(call_)
        records.start(name, recording)
        assert records.cut(name) is recording
        records.finish(name, recording)
    assert [await records.get(name, 0.0) is not None for name in ("a", "b", "c")] == [False, True, True]
    small = Records(max_bytes=10)
    small.finish("a", recording)
    assert await small.get("a", 0.0) is None


async def test_nothing_sampled_leaves_no_record() -> None:
    records, recording = Records(), Recording("build")
    records.start("a", recording)
    waiting = asyncio.create_task(records.get("a", 5.0))
    await asyncio.sleep(0)
    records.finish("a", recording)
    assert await waiting is None
    assert CURRENT.get() is None
