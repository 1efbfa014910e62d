"""HTTP/1.1 at the socket: uvicorn's protocol, with what it lacks, and without ASGI between it and an `Exchange`.

Scope, messages and their events took a fifth of a plain turn. What is uvicorn's: sockets, keep-alive, pipelining, flow
control, the order of a shutdown. What is here beside:

- The head of a request is bounded in time and in size, whoever sends it: no key is known yet. So is the time for the
  rest of a body that was answered before it had come.
- So are connections in number, for nobody needs a key to open one, and engines and the spool need files, too. At the
  most, the one that has been without a request for longest makes room for a new one; one with a request never does.
- So are requests that wait behind one that is being answered: the last of them ends the connection, and what comes
  after it is not read. Bytes of a few requests become many objects, and no key is known of those either.
- What the parser refuses (lengths that contradict each other, bad chunks, what is no HTTP) is answered as the formats'
  clients read errors, and the connection is closed: nothing after it could be trusted.
- What stands between a body's chunks, or after them, is bounded like a head, and not read.
- An offer to go on in another protocol (`Upgrade: h2c`, as Java's own client makes it) is not taken, and costs the
  request nothing; httptools alone would drop its body.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ingest.contracts.ids import new_id
from serving.gateway.dialects import answering
from serving.gateway.errors import BadRequest, BodyTimeout, GatewayError, HeadTooLarge, Unavailable
from serving.gateway.exchange import Application, Exchange

HEAD_BYTES = 64 << 10
MOST_WAITING = 8
"""Requests that wait on one connection. Clients that send the next before an answer has come are few."""
_OFFERS = frozenset({b"upgrade", b"connection", b"http2-settings"})


class _EnoughError(Exception):
    """Stops the parser."""


class Protocol(HttpToolsProtocol):
    """One connection, of `most` at a time. `head_seconds` is how long the head of a request may take; `refused` gets
    the code of an error for each request that the application never hears of."""

    head_seconds: float
    most: int
    idle: dict["Protocol", None]
    """Those of one server that have no request, whether or not one has begun to come: the longest first."""
    refused: Callable[[str], None]
    pipeline: deque[tuple[Exchange, Application]]  # type: ignore[assignment]
    cycle: Exchange | None  # type: ignore[assignment]
    """The request that is being read, or was last."""
    app: Application

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.url = b""
        self.headers = []
        self._answering: Exchange | None = None
        self._head_bytes = 0
        self._head_begun = False
        self._between_bytes = 0
        """Of chunks' extensions and trailers, since a body's bytes came last."""
        self._body_came = False
        self._reads_on = True
        """Whether another request may begin to come."""
        self._await_head()
        if len(self.connections) > self.most and not self._found_room():
            self._refuse_for_room()
        else:
            self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._head_came()
        told = {self.cycle, self._answering}
        self.cycle = self._answering = None  # nothing is left in a circle, for nobody looks for those (`server`)
        self.pipeline.clear()
        super().connection_lost(exc)
        for exchange in told:
            if exchange is not None:
                exchange.lost()

    def shutdown(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.last()

    def end_now(self) -> None:
        """The process ends, and waits no longer for the answer in progress, or for those of requests behind it."""
        for exchange in (self._answering, *(waiting for waiting, _ in self.pipeline)):
            if exchange is not None:
                exchange.end_now()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        head, self._body_came = self._head_timer, False
        in_body = self._in_body
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer(data[offer.args[0] :])
                continue
            except httptools.HttpParserError:
                if not self._reads_on and not self._in_body:
                    return
                self._refuse(BadRequest("This is not a well-formed HTTP/1.1 request."))
                return
            break
        if self._head_begun:
            if self._head_timer is None:
                self._await_head()
            elif head is self._head_timer:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES:
                    self._refuse(HeadTooLarge(f"The request's head is above {HEAD_BYTES} bytes."))
        elif self._body_came or not in_body:
            self._between_bytes = 0
        else:
            self._between_bytes += len(data)
            if self._between_bytes > HEAD_BYTES:
                self._refuse(HeadTooLarge(f"What stands beside a body's chunks is above {HEAD_BYTES} bytes."))

    @property
    def _in_body(self) -> bool:
        return not self._head_begun and self.cycle is not None and self.cycle.more_body

    def on_message_begin(self) -> None:
        if not self._reads_on:
            raise _EnoughError
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head_begun = True

    def on_headers_complete(self) -> None:
        self._head_came()
        if self.parser.should_upgrade():
            return
        self.idle.pop(self, None)
        path = httptools.parse_url(self.url).path.decode("ascii")
        version = self.parser.get_http_version()
        before = self.cycle
        self.cycle = Exchange(
            self,
            self.parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            self.headers,
            http_1_1=version == "1.1",
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            wants_continue=self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # it waits for the answer of the one before it
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
            if len(self.pipeline) == MOST_WAITING:
                self.cycle.last()
                self._reads_on = False

    def _start_asgi_task(self, cycle: Exchange, app: Application) -> None:  # type: ignore[override]
        self._answering = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_begun:  # a trailer is none: nobody asked for it
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        if self.cycle is not None and not self.parser.should_upgrade():
            self.cycle.received(body)

    def on_message_complete(self) -> None:
        self._head_came()
        if self.cycle is not None and not self.parser.should_upgrade():
            self.cycle.received_all()

    def on_response_complete(self) -> None:
        if self.cycle is not None and self.cycle.more_body and self._head_timer is None:
            self._await_head()
        super().on_response_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self.idle[self] = None

    def _await_head(self) -> None:
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self.head_seconds, self._head_late)

    def _head_came(self) -> None:
        self._head_begun = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
            self._head_bytes = 0

    def _head_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # of a request behind one that is still being answered
        elif not self._head_begun:
            self.transport.close()
        else:
            self._refuse(BodyTimeout("The request's head did not arrive in time."))

    def _found_room(self) -> bool:
        """Closes the longest idle connection; whether there was one. Who still takes its answer is not idle yet."""
        for other in self.idle:
            if not other.transport.is_closing() and not other.transport.get_write_buffer_size():
                del self.idle[other]
                other._make_room()
                return True
        return False

    def _make_room(self) -> None:
        if self.cycle is None or self._head_begun:
            self._refuse_for_room()
        else:  # an answer without a request would be taken for the next one's
            self.transport.close()

    def _refuse_for_room(self) -> None:
        self._refuse(Unavailable("Too many connections are open here: try again in a moment."))

    def _without_offer(self, rest: bytes) -> bytes:
        """What is to be read instead: the request without its offer of another protocol, and the rest."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(BadRequest("This is no proxy."))
            return b""
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name not in _OFFERS]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join((*lines, b"", rest))

    def _refuse(self, error: GatewayError) -> None:
        """Answers, where no answer has begun, and closes the connection."""
        self.refused(error.code)
        self._head_came()
        cycle = self.cycle
        if not self.pipeline and (cycle is None or cycle.response_complete or not cycle.started):
            path = self.url.partition(b"?")[0].decode("latin-1")
            dialect = answering(path, of_anthropic=any(name == b"anthropic-version" for name, _ in self.headers))
            request_id, body = new_id("req").encode(), dialect.error_body(error)
            head = [
                *(b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close"),
                *(b"%b: %b" % field for field in error.headers),
                *(b"%b: %b" % (name, request_id) for name in {b"x-request-id", dialect.request_id_header}),
            ]
            self.transport.write(STATUS_LINE[error.status] + b"\r\n".join((*head, b"", body)))
        self.transport.close()


def bounded(head_seconds: float, most: int, refused: Callable[[str], None]) -> type[Protocol]:
    """One server's protocol with these bounds, telling `refused` what it refuses."""
    bounds = {"head_seconds": head_seconds, "most": most, "refused": staticmethod(refused), "idle": {}}
    return type("BoundedProtocol", (Protocol,), bounds)
