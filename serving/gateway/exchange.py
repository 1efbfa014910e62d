"""One HTTP request and its response: the ASGI border.

Bounded body, response started once, and word of a client that leaves. Sending to a client that left does
nothing, so that an engine's answer is read to its end whatever the client does. A client that is there and reads
nothing leaves, too: the kernel ends its connection after a while (`server.bind`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from serving.gateway.errors import BadRequest, BodyTimeout, GatewayError, MethodNotAllowed, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class ClientLeft(Exception):
    """The client left before there was anything to do for it."""


class Exchange:
    """A request, and the response to it."""

    __slots__ = (
        *("_headers", "_receive", "_repeated", "_send", "id_header", "left", "request_id", "scope", "sending"),
        *("started", "status"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._repeated = len(self._headers) < len(scope["headers"])
        self.request_id = ""
        self.id_header = b"x-request-id"
        """Where else the caller's format looks for the request's id."""
        self.started = False
        self.status = 499
        """What was answered; 499, as is the custom, while nothing was."""
        self.left = False
        self.sending = False
        """Whether `send` waits, or was cancelled while it waited, for the client to read."""

    def has(self, name: bytes) -> bool:
        """Whether there is a request header of this lower-case name."""
        return name in self._headers

    def header(self, name: bytes) -> str | None:
        """A request header by its lower-case name. Raises `BadRequest` where it came twice: who reads which is open."""
        value = self._headers.get(name)
        if value is None:
            return None
        if self._repeated and [sent for sent, _ in self.scope["headers"]].count(name) > 1:
            raise BadRequest(f"The header {name.decode()} came twice: send it once.")
        return value.decode("latin-1")

    async def read_body(self, limit: int, seconds: float, reserve: Callable[[int], None]) -> bytes:
        """The whole body. `reserve` is told of its size before it is read, or as it grows.

        Raises `TooLarge`, `BodyTimeout`, `ClientLeft`, and what `reserve` raises.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        declared = self._headers.get(b"content-length", b"")
        if declared.isdigit():
            self._bounded(int(declared), limit, reserve)
        parts, size = [], 0
        while True:
            message = await self._next(deadline)
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._bounded(size, limit, reserve)
            if not message.get("more_body"):
                return b"".join(parts)

    async def _next(self, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._receive()
        except TimeoutError:
            raise BodyTimeout("The body did not arrive in time.") from None

    @staticmethod
    def _bounded(size: int, limit: int, reserve: Callable[[int], None]) -> None:
        if size > limit:
            raise TooLarge(f"The body is above {limit} bytes.")
        reserve(size)

    @contextmanager
    def watched(self, on_leave: Callable[[], None]) -> Iterator[None]:
        """Within the block, calls `on_leave` once if the client leaves. The body must have been read."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.left = True
            on_leave()

        task = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        finally:
            task.cancel()

    async def start(self, status: int, content_type: bytes, headers: Headers = [], length: int | None = None) -> None:  # noqa: B006
        """Sends status and headers; without a `length` the body comes in chunks."""
        self.status = status
        fields = [(b"content-type", content_type), (b"x-request-id", self.request_id.encode()), *headers]
        if self.id_header != b"x-request-id":
            fields.append((self.id_header, self.request_id.encode()))
        if length is not None:
            fields.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        self.started = True

    async def send(self, data: bytes) -> None:
        """Sends part of a body."""
        self.sending = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.sending = False

    async def end(self, data: bytes = b"") -> None:
        """Sends the last part of a body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers = [], content_type: bytes = JSON) -> None:  # noqa: B006
        """A whole response."""
        await self.start(status, content_type, headers, len(body))
        await self.end(body)

    async def fail(self, error: GatewayError, body: bytes, event: bytes) -> None:
        """The error as a response, or as the stream's last event where the response has begun."""
        if self.started:
            await self.end(event)
            return
        headers: Headers = []
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
        if isinstance(error, MethodNotAllowed):
            headers.append((b"allow", error.allowed.encode()))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self.answer(error.status, body, headers)
