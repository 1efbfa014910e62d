"""Carries the tap's record to the caller at the end of the response, as `ingest.contracts.tap` describes.

A pure ASGI middleware, so that streams pass chunk by chunk. A request without the gateway's token passes
untouched. For one with it: a fresh `Recording` is current while the app runs; a JSON response is held until its
end, for the record changes its length; of an event stream only the final empty message is held. A response
gains a record if the engine was called, an error response only if it sampled something.

`http.disconnect` is kept from the app while the engine is at work: the app would cancel the generator, and what
was sampled would be lost. Instead the engine's requests are aborted, and the app ends by itself.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any

from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, STREAM_EVENT, encode_tap
from serving.vllm_plugin.records import Records
from serving.vllm_plugin.tap import CURRENT, Recording, Tap

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

TOKEN = REQUEST_HEADER.encode()


class Shared:
    """What routes and middleware share: made when routes attach, its `tap` set once the engine is known."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()
        self.records = Records()
        self.tap: Tap | None = None
        self.engine_build = ""
        self.in_flight = 0
        self._cutting: set[asyncio.Task[None]] = set()

    def admits(self, given: bytes | None) -> bool:
        """Whether `given` is the engine's token."""
        return given is not None and compare_digest(given, self.token)

    def cut(self, recording: Recording) -> None:
        """Sees to it that a request ends, however far it has come; its response then ends by itself."""
        assert self.tap is not None, "it recorded"
        task = asyncio.create_task(self.tap.cut(recording))
        self._cutting.add(task)
        task.add_done_callback(self._cutting.discard)


def header(scope: MutableMapping[str, Any], name: bytes) -> bytes | None:
    """The first header `name` (lower case) of a request."""
    return next((value for key, value in scope["headers"] if key == name), None)


class TapMiddleware:
    """See the module."""

    def __init__(self, app: App, shared: Shared) -> None:
        self._app = app
        self._shared = shared

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        shared = self._shared
        ours = scope["type"] == "http" and not scope["path"].startswith("/everloop/")
        if not ours or shared.tap is None or not shared.admits(header(scope, TOKEN)):
            await self._app(scope, receive, send)
            return
        tap, recording = shared.tap, Recording(shared.engine_build)
        request_id = (header(scope, b"x-request-id") or b"").decode("latin-1")

        async def receive_or_abort() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and recording.calls:
                await tap.cut(recording)
            return message

        if request_id and shared.records.start(request_id, recording):
            shared.cut(recording)
        shared.in_flight += 1
        previous = CURRENT.set(recording)
        try:
            await self._app(scope, receive_or_abort, _Trailer(send, recording))
        finally:
            CURRENT.reset(previous)
            shared.in_flight -= 1
            shared.records.finish(request_id, recording) if request_id else recording.done.set()


class _Trailer:
    """The `send` of one response, which adds the record at its end."""

    def __init__(self, send: Send, recording: Recording) -> None:
        self._send = send
        self._recording = recording
        self._start: Message = {}
        self._stream = False
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            content_type = dict(message["headers"]).get(b"content-type", b"")
            self._stream = content_type.startswith(b"text/event-stream")
            if self._stream:
                await self._send(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._stream:
            await self._event(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._whole()

    def _record(self) -> bytes:
        due = self._recording.sampled if self._start["status"] >= 400 else self._recording.calls
        return encode_tap(self._recording.frozen()) if due else b""

    async def _event(self, message: Message) -> None:
        record = b"" if message.get("more_body", False) else self._record()
        if record:
            event = b"event: " + STREAM_EVENT.encode() + b"\ndata: " + b64encode(record) + b"\n\n"
            message = {**message, "body": message.get("body", b"") + event}
        await self._send(message)

    async def _whole(self) -> None:
        record, headers = self._record(), self._start["headers"]
        if record:
            headers = [pair for pair in headers if pair[0] not in (b"content-length", LENGTH_HEADER.encode())]
            headers.append((b"content-length", str(len(self._body) + len(record)).encode()))
            headers.append((LENGTH_HEADER.encode(), str(len(record)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": bytes(self._body) + record, "more_body": False})
