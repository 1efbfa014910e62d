"""A scripted engine, as a program of its own: vLLM's HTTP interface with the tap, and faults on demand.

It speaks the formats of `tests.stand_in_formats`, streamed and not, emits the record as `ingest.contracts.tap`
says, and keeps what it sent for a test to compare with. Each token has a random id and logprob; its text is
"w<id> ", or a piece of what a script says.

    POST /stand-in  {"faults": [...], "delay": S, "version": V, "tokens": N, "scripts": {word: [step, ...]}}
    GET  /stand-in  {"requests": [bodies], "headers": [...], "sent": {request_id: record}, "aborted": [...]}

The next requests meet one fault each. After a user says a script's word, answers are the script's steps one after
another, then the last one again: `{"text": …}`, `{"tool": name, "arguments": {…}}`, or several of these in
`{"calls": […]}`; with `"prompt_tokens"` the usage says so many. Of several words the last to be said counts. In a step,
`<<regular expression>>` stands for what its group last matched in the request.

Faults: `error500`, `error400`, `too_long` (the prompt), `drop` (closes before the first byte), `cut` (closes in
mid-answer), `die_before` and `die_mid` (the process ends), `no_record`, `damaged_record`, `error_event`, `hold` (stops
after the first token until aborted), `flood` (the same after 200 tokens of 64 KiB), `deaf` (as `hold`, and then goes on
to its end).

With `--control` it posts heartbeats as an engine of the policy `--model`.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import re
import sys
import uuid
from functools import partial

import aiohttp
import msgspec
from aiohttp import web

from ingest.contracts.arrays import pack_ids, pack_logprobs
from ingest.contracts.fleet import Assignment, EngineState, Heartbeat
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, STREAM_EVENT, TapCall, TapRecord, TapSample, encode_tap
from ingest.contracts.turn import Span
from tests.stand_in_answers import Format, Output
from tests.stand_in_formats import FORMATS

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "max_tokens")
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Sample(Output):
    """One output in the making, of `length` tokens: the pieces of a `script`, or random ones."""

    def __init__(self, index: int, length: int, script: list[str]) -> None:
        super().__init__(index)
        self.script = script[:length]
        self.length = len(self.script) or length
        self.cut = len(self.script) < len(script)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[str] = []

    def step(self, version: str, padding: str) -> None:
        """Samples one token."""
        self.ids.append(random.randrange(1000))
        self.logprobs.append(-random.random())
        self.versions.append(version)
        self.pieces.append(self.script[len(self.pieces)] if self.script else f"w{self.ids[-1]} {padding}")
        if len(self.ids) >= self.length:
            self.finish = "length" if self.cut else "stop"

    def frozen(self) -> TapSample:
        """As the tap records it."""
        spans: list[Span] = []
        for at, version in enumerate(self.versions):
            if spans and spans[-1].version == version:
                spans[-1] = Span(version, spans[-1].start, at + 1)
            else:
                spans.append(Span(version, at, at + 1))
        return TapSample(
            index=self.index,
            output_ids=pack_ids(self.ids),
            logprobs=pack_logprobs(self.logprobs),
            weight_versions=tuple(spans),
            finish=self.finish,
        )


class StandIn:
    """The engine's state and handlers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.token, self.model, self.version = options.token, options.model, options.version
        self.length, self.delay, self.max_len = options.tokens, options.delay, options.max_model_len
        self.faults: list[str] = []
        self.scripts: dict[str, list[dict]] = {"call_tool": [{"tool": "look", "arguments": {"at": 1}}]}
        self.requests: list[dict] = []
        self.headers: list[dict] = []
        self.sent: dict[str, TapRecord] = {}
        self.aborted: list[str] = []
        self.running: dict[str, asyncio.Event] = {}

    async def generate(self, http: web.Request, form: type[Format]) -> web.StreamResponse:
        """One call."""
        if http.headers.get("authorization") != f"Bearer {self.token}":
            return _error(401, "Unauthorized")
        body = await http.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "die_before":
            os._exit(9)
        if fault == "drop":
            http.transport.abort()
            return web.Response()
        if fault == "error500":
            return _error(500, "scripted")
        if fault == "error400":
            return _error(400, "scripted refusal")
        if fault == "too_long":
            return _error(400, f"This model's maximum context length is {self.max_len} tokens. The request has more.")
        if body.get("model") != self.model:
            return _error(404, "no such model")
        request_id = http.headers.get("x-request-id") or uuid.uuid4().hex
        try:
            limit = form.limit(body)
            if limit and limit > self.max_len:
                return _error(400, "max_tokens is above the context length")
            if not all(isinstance(body.get(name), int | float | None) for name in SAMPLING):
                return _error(400, "sampling takes numbers")
            call = _Call(form, request_id, body, self._step(form, body), limit or self.max_len, self.length)
        except (TypeError, KeyError, AttributeError) as error:
            return _error(400, f"This request cannot be read: {error}")
        stopped = self.running[request_id] = asyncio.Event()
        try:
            if body.get("stream"):
                return await self._stream(http, call, fault, stopped)
            return await self._whole(http, call, fault, stopped)
        finally:
            del self.running[request_id]

    def _step(self, form: type[Format], body: dict) -> dict | None:
        """What the script of this conversation says now; None where it has none."""
        said = form.said(body)
        words = [(at, text.rfind(word), word) for at, text in enumerate(said) if text for word in self.scripts]
        if not (found := [(at, place, word) for at, place, word in words if place >= 0]):
            return None
        at, _, word = max(found)
        steps, answers = self.scripts[word], said[at:].count(None)
        text, given = json.dumps(steps[min(answers, len(steps) - 1)]), json.dumps(body)
        return json.loads(re.sub("<<(.*?)>>", lambda hole: re.findall(json.loads(f'"{hole[1]}"'), given)[-1], text))

    async def _steps(self, call: "_Call", fault: str, stopped: asyncio.Event):
        at = 0
        while any(sample.finish is None for sample in call.samples):
            if self.delay:
                await asyncio.sleep(self.delay)
            if at == {"hold": 1, "deaf": 1, "flood": 200}.get(fault):
                await stopped.wait()
            if stopped.is_set() and fault != "deaf":
                for sample in call.samples:
                    sample.finish = sample.finish or "abort"
                return
            at += 1
            for sample in call.samples:
                if sample.finish is None:
                    sample.step(self.version, "x" * (64 << 10) if fault == "flood" else "")
                    yield sample

    def _record(self, call: "_Call", fault: str) -> bytes:
        record = TapRecord(engine_build="stand-in", first_token_at=None, calls=call.frozen())
        self.sent[call.request_id] = record
        if fault == "no_record":
            del self.sent[call.request_id]
            return b""
        return encode_tap(record)[: 7 if fault == "damaged_record" else None]

    async def _whole(self, http: web.Request, call: "_Call", fault: str, stopped: asyncio.Event) -> web.StreamResponse:
        async for _ in self._steps(call, fault, stopped):
            if fault == "die_mid":
                os._exit(9)
        body = json.dumps(call.format.whole(call.samples), separators=(",", ":")).encode()
        tapped = http.headers.get(REQUEST_HEADER) == self.token
        record = self._record(call, fault) if tapped else b""
        headers = {"content-type": "application/json"}
        if record:
            headers[LENGTH_HEADER] = str(len(record))
        if fault == "cut":
            response = web.StreamResponse(headers=headers | {"content-length": str(len(body) + len(record))})
            await response.prepare(http)
            await response.write(body[: len(body) // 2])
            http.transport.abort()
            return response
        return web.Response(body=body + record, headers=headers)

    async def _stream(self, http: web.Request, call: "_Call", fault: str, stopped: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        async for sample in self._steps(call, fault, stopped):
            await response.write(b"".join(call.format.encode(event) for event in call.format.events(sample)))
            if fault == "cut" and len(sample.ids) == 2:
                http.transport.abort()
                return response
            if fault == "die_mid" and len(sample.ids) == 2:
                os._exit(9)
            if fault == "error_event" and len(sample.ids) == 2:
                error = {"message": "scripted", "type": "server_error", "code": 500}
                await response.write(call.format.encode({"error": error}))
                break
        record = self._record(call, fault) if http.headers.get(REQUEST_HEADER) == self.token else b""
        await response.write(call.format.ending(call.samples))
        if record:
            await response.write(b"event: " + STREAM_EVENT.encode() + b"\ndata: " + base64.b64encode(record) + b"\n\n")
        await response.write_eof()
        return response

    # -- the plugin's routes, and the stand-in's own

    async def abort(self, http: web.Request) -> web.Response:
        """`POST /everloop/abort`."""
        if http.headers.get(REQUEST_HEADER) != self.token:
            return _error(401, "Unauthorized")
        request_id = (await http.json())["request_id"]
        self.aborted.append(request_id)
        if request_id in self.running:
            self.running[request_id].set()
        return web.json_response({})

    async def record(self, http: web.Request) -> web.Response:
        """`GET /everloop/records/{request_id}`."""
        if http.headers.get(REQUEST_HEADER) != self.token:
            return _error(401, "Unauthorized")
        record = self.sent.get(http.match_info["request_id"])
        return _error(404, "unknown") if record is None else web.Response(body=encode_tap(record))

    async def script(self, http: web.Request) -> web.Response:
        """`POST /stand-in`."""
        order = await http.json()
        self.faults += order.get("faults", [])
        self.delay = order.get("delay", self.delay)
        self.version = order.get("version", self.version)
        self.length = order.get("tokens", self.length)
        self.scripts |= order.get("scripts", {})
        return web.json_response({})

    async def tell(self, http: web.Request) -> web.Response:
        """`GET /stand-in`."""
        told = {"requests": self.requests, "headers": self.headers, "sent": self.sent, "aborted": self.aborted}
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def heartbeats(self, options: argparse.Namespace) -> None:
        """Reports itself ready, and takes a newly assigned version for its own; a scripted one stays until then."""
        beat = Heartbeat(
            policy=options.model,
            url=f"http://127.0.0.1:{options.port}",
            token=self.token,
            role=options.role,
            state=EngineState.READY,
            version=self.version,
            build="stand-in",
            max_model_len=self.max_len,
        )
        url = f"{options.control}/v1/engines/{options.engine_id}/heartbeat"
        headers = {"authorization": f"Bearer {os.environ['EVERLOOP_CONTROL_TOKEN']}"}
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.post(url, data=msgspec.json.encode(beat), headers=headers) as response:
                        if response.status == 200:
                            target = msgspec.json.decode(await response.read(), type=Assignment).target
                            if target is not None and target.version != beat.version:
                                self.version = target.version
                                beat = msgspec.structs.replace(beat, version=target.version)
                except aiohttp.ClientError as error:
                    print(f"stand-in: no heartbeat: {type(error).__name__}", file=sys.stderr)
                await asyncio.sleep(0.3)


class _Call:
    """One request being answered."""

    def __init__(
        self, form: type[Format], request_id: str, body: dict, step: dict | None, limit: int, tokens: int
    ) -> None:
        self.request_id, self.body = request_id, body
        self.format = form(request_id, body, step or {})
        script = self.format.script
        prompt = body.get("prompt")
        self.prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
        self.n = body.get("n") or 1
        length = limit if script else min(limit, tokens)
        self.samples = [Sample(i, length, script) for i in range(self.n * len(self.prompts))]

    def frozen(self) -> tuple[TapCall, ...]:
        """One call to the engine for each prompt."""
        said = next(self.body[name] for name in ("messages", "prompt", "input") if name in self.body)
        text = json.dumps(said)
        sampling = {**NEUTRAL, **{name: self.body[name] for name in SAMPLING if self.body.get(name) is not None}}
        calls = []
        for place in range(len(self.prompts)):
            samples = self.samples[place * self.n : (place + 1) * self.n]
            calls.append(
                TapCall(
                    request_id=f"{self.format.id}-{place}" if "prompt" in self.body else self.format.id,
                    prompt_ids=pack_ids(list(text.encode())),
                    samples=tuple(
                        msgspec.structs.replace(sample.frozen(), index=at) for at, sample in enumerate(samples)
                    ),
                    sampling=sampling,
                    constrained="grammar" if self.body.get("response_format") else None,
                )
            )
        return tuple(calls)


async def count_tokens(http: web.Request) -> web.Response:
    """`/v1/messages/count_tokens`: bytes for tokens."""
    count = len(json.dumps((await http.json())["messages"]))
    return web.json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status=status
    )


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", default="engine-token")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--version", default="base")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds for each token")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--control", help="post heartbeats there (EVERLOOP_CONTROL_TOKEN)")
    parser.add_argument("--engine-id", default="stand-in")
    parser.add_argument("--role", default="serve")
    options = parser.parse_args()
    engine = StandIn(options)
    app = web.Application(client_max_size=64 << 20)
    for form in FORMATS:
        app.router.add_post(form.path, partial(engine.generate, form=form))
    app.router.add_post("/v1/messages/count_tokens", count_tokens)
    app.router.add_post("/everloop/abort", engine.abort)
    app.router.add_get("/everloop/records/{request_id}", engine.record)
    app.router.add_post("/stand-in", engine.script)
    app.router.add_get("/stand-in", engine.tell)

    async def start(_: web.Application) -> None:
        if options.control:
            app["heartbeats"] = asyncio.create_task(engine.heartbeats(options))

    app.on_startup.append(start)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
