"""One HTTP request and its response, between the connection (`protocol.py`) and whoever answers.

Bounded body, response started once, and word of a client that leaves. Sending to a client that left does
nothing, so that an engine's answer is read to its end whatever the client does. A client that is there and reads
nothing leaves, too: the kernel ends its connection after a while (`server.bind`).

Invariant: a response's head goes out with the first bytes of its body, in one write; nothing goes out after its end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ingest.contracts.process_logs import described
from serving.gateway.errors import BadRequest, BodyTimeout, GatewayError, Stopping, TooLarge

Headers = list[tuple[bytes, bytes]]
Application = Callable[["Exchange"], Awaitable[None]]
"""What answers requests: the gateway itself, and its admin port."""

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
logger = logging.getLogger(__name__)


class ClientLeft(Exception):
    """The client left before there was anything to do for it."""


class Line(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl

    def on_response_complete(self) -> None:
        """The next request's turn."""


class Exchange:
    """A request, and the response to it."""

    __slots__ = (
        *("_arrival", "_bodiless", "_chunked", "_ends", "_head", "_headers", "_keep_alive", "_line", "_on_end"),
        *("_body", "_on_leave"),
        *("_repeated", "_sent_headers", "_size", "_wants_continue", "disconnected", "id_header", "method", "more_body"),
        *("path", "request_id", "response_complete", "sending", "started", "status"),
    )

    def __init__(
        self,
        line: Line,
        method: str,
        path: str,
        headers: Headers,
        *,
        http_1_1: bool = True,
        keep_alive: bool = True,
        wants_continue: bool = False,
    ) -> None:
        self._line = line
        self.method = method
        self.path = path
        self._sent_headers = headers
        self._headers = dict(headers)
        self._repeated = len(self._headers) < len(headers)
        self._keep_alive = keep_alive
        self._wants_continue = wants_continue
        self._body: bytes | bytearray = b""
        """What has come of the body; not as parts, for of two bytes each they would take 26 times their size."""
        self._size = 0
        self._arrival: asyncio.Future[None] | None = None
        self.more_body = True
        """Whether more of the request's body is to come."""
        self._on_leave: Callable[[], None] | None = None
        self._on_end: Callable[[], None] | None = None
        self._ends = False
        self._bodiless = method == "HEAD"
        self._chunked = http_1_1
        self._head = b""
        self.request_id = ""
        self.id_header = b"x-request-id"
        """Where else the caller's format looks for the request's id."""
        self.started = self.response_complete = self.disconnected = False
        self.status = 499
        """What was answered; 499, as is the custom, while nothing was."""
        self.sending = False
        """Whether `send` waits, or was cancelled while it waited, for the client to read."""

    # -- the connection's calls

    async def run_asgi(self, answer: Application) -> None:
        """Has the request answered; uvicorn's name for it. An answer without an end ends the connection."""
        try:
            await answer(self)
        except Exception as error:  # noqa: BLE001 a bug must reach the log, and not end the server
            logger.error("a bug: %s", described(error))
        finally:
            if not self.response_complete:
                self._line.transport.close()

    def received(self, data: bytes) -> None:
        """Some of the body has come."""
        if self.response_complete:
            return
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body + data)
        self._size += len(data)
        if self._size > HIGH_WATER_LIMIT:
            self._line.flow.pause_reading()
        self._wake()

    def received_all(self) -> None:
        """The body is whole."""
        self.more_body = False
        self._wake()

    def lost(self) -> None:
        """The connection has ended. What was not read of the body goes: nobody may."""
        self.disconnected = True
        self._body = b""
        self._wake()
        if self._on_leave is not None and not self.response_complete:
            self._on_leave()

    def end_now(self) -> None:
        """The process ends, and waits no longer for the answer, nor begins one."""
        self._ends = True
        self._wake()
        if self._on_end is not None and not self.response_complete:
            self._on_end()

    def last(self) -> None:
        """The connection is to end with this response."""
        self._keep_alive = False

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # -- the request

    def has(self, name: bytes) -> bool:
        """Whether there is a request header of this lower-case name."""
        return name in self._headers

    def header(self, name: bytes) -> str | None:
        """A request header by its lower-case name. Raises `BadRequest` where it came twice: who reads which is open."""
        value = self._headers.get(name)
        if value is None:
            return None
        if self._repeated and [sent for sent, _ in self._sent_headers].count(name) > 1:
            raise BadRequest(f"The header {name.decode()} came twice: send it once.")
        return value.decode("latin-1")

    async def read_body(self, limit: int, seconds: float, reserve: Callable[[int], None]) -> bytes:
        """The whole body. `reserve` is told of its size before it is read, or as it grows.

        Raises `TooLarge`, `BodyTimeout`, `ClientLeft`, `Stopping`, and what `reserve` raises.
        """
        declared = self._headers.get(b"content-length", b"")
        self._bound(int(declared) if declared.isdigit() else self._size, limit, reserve)
        if self.more_body:
            await self._come(limit, seconds, reserve)
        if self.disconnected:
            raise ClientLeft
        if self._ends:
            raise Stopping  # what begins now would be ended in its midst
        body, self._body = self._body, b""
        return bytes(body)

    async def _come(self, limit: int, seconds: float, reserve: Callable[[int], None]) -> None:
        """Waits for the end of the body."""
        if self._wants_continue:
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(seconds):
                while self.more_body and not self.disconnected and not self._ends:
                    self._line.flow.resume_reading()
                    self._arrival = asyncio.get_running_loop().create_future()
                    await self._arrival
                    self._bound(self._size, limit, reserve)
        except TimeoutError:
            raise BodyTimeout("The body did not arrive in time.") from None

    @staticmethod
    def _bound(size: int, limit: int, reserve: Callable[[int], None]) -> None:
        if size > limit:
            raise TooLarge(f"The body is above {limit} bytes.")
        reserve(size)

    @contextmanager
    def watched(self, on_leave: Callable[[], None], on_end: Callable[[], None] | None = None) -> Iterator[None]:
        """Within the block, calls `on_leave` once if the client leaves, and `on_end` if the process waits no longer.

        The body must just have been read.
        """
        self._line.flow.resume_reading()
        self._on_leave, self._on_end = on_leave, on_end
        try:
            if self.disconnected:
                on_leave()
            yield
        finally:
            self._on_leave = self._on_end = None

    # -- the response

    def start(self, status: int, content_type: bytes, headers: Headers = [], length: int | None = None) -> None:  # noqa: B006
        """Status and headers, which go out with the body's first bytes; without a `length` it comes in chunks.

        Raises `ValueError` for a header with a line's end in it.
        """
        request_id = self.request_id.encode()
        fields = [b"content-type: " + content_type, b"x-request-id: " + request_id]
        fields += [b"%b: %b" % field for field in headers]
        if self.id_header != b"x-request-id":
            fields.append(b"%b: %b" % (self.id_header, request_id))
        if length is not None:
            self._chunked = False
            fields.append(b"content-length: %d" % length)
        elif self._chunked:
            fields.append(b"transfer-encoding: chunked")
        if not self._keep_alive:
            fields.append(b"connection: close")
        head = STATUS_LINE[status] + b"\r\n".join((*fields, b"", b""))
        if not head.count(b"\r") == head.count(b"\n") == len(fields) + 2:
            raise ValueError("a header has a line's end in it")
        self._head = head
        self.status = status
        self.started = True

    async def send(self, data: bytes) -> None:
        """Sends part of a body; waits while the client does not read what it was sent before."""
        if self._line.flow.write_paused and not self.disconnected:
            self.sending = True
            await self._line.flow.drain()
            self.sending = False
        self._write(data, b"")

    async def end(self, data: bytes = b"") -> None:
        """Sends the last part of a body. Raises `RuntimeError` after the last one."""
        if self.response_complete:
            raise RuntimeError("the response has ended")
        if self._line.flow.write_paused and not self.disconnected:
            await self._line.flow.drain()
        self._write(data, b"0\r\n\r\n")
        if self.disconnected:
            return
        self.response_complete = True
        self._body = b""
        if not self._keep_alive:
            self._line.transport.close()
        self._line.on_response_complete()

    def _write(self, data: bytes, last: bytes) -> None:
        if self.disconnected:
            return
        head, self._head = self._head, b""
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n%b" % (len(data), data, last) if data else last
        if head or data:
            self._line.transport.write(head + data)

    async def answer(self, status: int, body: bytes, headers: Headers = [], content_type: bytes = JSON) -> None:  # noqa: B006
        """A whole response."""
        self.start(status, content_type, headers, len(body))
        await self.end(body)

    async def fail(self, error: GatewayError, body: bytes, event: bytes) -> None:
        """The error as a response, or as the stream's last event where the response has begun."""
        if self.started:
            await self.end(event)
            return
        await self.answer(error.status, body, error.headers)
