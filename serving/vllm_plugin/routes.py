"""The plugin's HTTP routes, all below /everloop and all for callers with the engine's token.

vLLM's own API key guards /v1 only, so each route here authenticates itself: `x-everloop-tap: <token>`, compared in
constant time. Errors: {"error": "sentence"}.

    POST /everloop/swap                    SwapRequest → Swap; 422 refused, 409 rolled back (a Swap, too), 500 unusable
    POST /everloop/score                   ScoreRequest → Reference of the weights that serve now
    GET  /everloop/state                   EngineInfo
    POST /everloop/abort                   {"request_id": …} → {"aborted": bool}: the response then ends by itself;
                                           false where the request is not here: if it comes later, it is aborted then
    GET  /everloop/records/{request_id}    the record as MessagePack; ?wait=seconds for one that still runs; 404
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from msgspec.structs import replace

from ingest.contracts.tap import REQUEST_HEADER
from serving.fleet.swap import ScoreRequest, SwapRequest
from serving.vllm_plugin.middleware import Shared
from serving.vllm_plugin.weights import EngineUnusable, SwapRefused, Weights

T = TypeVar("T")
LONGEST_WAIT_SECONDS = 30.0

Handler = Callable[[Request], Awaitable[Response]]


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /everloop/abort: the `X-Request-Id` of the call to cut."""

    request_id: str


def attach(app: FastAPI, shared: Shared, weights: Callable[[], Weights]) -> None:
    """Registers the routes on `app`; `weights` is asked for at each request, for it exists only later."""

    def route(method: str, path: str, handler: Handler) -> None:
        async def guarded(request: Request) -> Response:
            given = request.headers.get(REQUEST_HEADER)
            if not shared.admits(given.encode("latin-1") if given is not None else None):
                return _error(401, f"this route needs the engine's token in {REQUEST_HEADER}")
            try:
                return await handler(request)
            except msgspec.MsgspecError as error:
                return _error(400, f"the body is not what {path} takes: {error}")

        app.add_api_route(path, guarded, methods=[method], include_in_schema=False)

    async def swap(request: Request) -> Response:
        body = await _body(request, SwapRequest)
        try:
            record = await weights().swap(body)
        except SwapRefused as error:
            return _error(422, str(error))
        except EngineUnusable as error:
            return _error(500, str(error))
        return _json(record, status=409 if record.error else 200)

    async def score(request: Request) -> Response:
        body = await _body(request, ScoreRequest)
        try:
            return _json(await weights().measure_reference(body))
        except EngineUnusable as error:
            return _error(500, str(error))

    async def state(request: Request) -> Response:
        return _json(replace(weights().info(), in_flight=shared.in_flight))

    async def abort(request: Request) -> Response:
        recording = shared.records.cut((await _body(request, AbortRequest)).request_id)
        if recording is not None:
            shared.cut(recording)
        return _json({"aborted": recording is not None})

    async def record(request: Request) -> Response:
        wait = min(float(request.query_params.get("wait", "0")), LONGEST_WAIT_SECONDS)
        data = await shared.records.get(request.path_params["request_id"], wait)
        if data is None:
            return _error(404, "no such record: still running, never sampled, or older than this engine keeps")
        return Response(data, media_type="application/msgpack")

    route("POST", "/everloop/swap", swap)
    route("POST", "/everloop/score", score)
    route("GET", "/everloop/state", state)
    route("POST", "/everloop/abort", abort)
    route("GET", "/everloop/records/{request_id}", record)


async def _body(request: Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.body(), type=kind)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _error(status: int, sentence: str) -> Response:
    return _json({"error": sentence}, status)
