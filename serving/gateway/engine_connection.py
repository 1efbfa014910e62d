"""HTTP/1.1 to an engine: connections that are kept open, each with one request at a time.

A general client cost more than all the rest of a turn (docs/performance.md), for it does what no engine needs:
redirects, cookies, compression, proxies. Parsing is httptools', as in the server. A body's parts wait here until they
are read; above `_MOST_WAITING` bytes nothing more is taken from the engine.
"""

import asyncio
import socket
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 3.0
"""Below the engine's own (5 s in vLLM), so that a request never meets a connection about to be closed."""
_MOST_WAITING = 1 << 18
Origin = tuple[str, str]
"""Scheme, and host with port."""


class EngineBroke(Exception):
    """The engine could not be reached, or broke off."""


class Connection(asyncio.Protocol):
    """One connection. After `ask`: `head`, then `chunk` until it gives nothing; `finished` tells if it may be kept."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        """The parser's call, once for each token of a stream: a method of Python would be a third of its cost."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._broke: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._idle = True
        self.idle_since = 0.0
        self._clear()

    def _clear(self) -> None:
        self.status = 0
        """0 until the head of the answer has come."""
        self.headers: dict[bytes, bytes] = {}
        """By lower-case name; of duplicates, the last."""
        self._parts.clear()
        self._waiting = 0
        """Bytes taken since a part was read last."""
        self._paused = False
        self._complete = False
        self._keep = False

    @property
    def finished(self) -> bool:
        """Whether the answer was read to its end, and another may be asked for."""
        return self._complete and self._keep and not self._parts and self._broke is None

    @property
    def broken(self) -> bool:
        """Whether nothing can be asked here any more."""
        return self._broke is not None

    def ask(self, request: bytes, silence_seconds: float | None) -> None:
        """Sends a request. An engine from which nothing comes for so long is taken for lost; None: it may take."""
        self._clear()
        self._idle = False
        if silence_seconds is not None:
            self._heard = self._loop.time()
            self._listen(silence_seconds)
        self._transport.write(request)

    def _listen(self, silence_seconds: float) -> None:
        silent = 0.0 if self._paused else self._loop.time() - self._heard
        if silent < silence_seconds:
            self._timer = self._loop.call_later(silence_seconds - silent, self._listen, silence_seconds)
        else:
            self._break("silence")

    async def head(self) -> None:
        """Waits for status and headers. Raises `EngineBroke`."""
        while not self.status:
            await self._more()

    async def chunk(self) -> bytes:
        """The next bytes of the body, empty at its end. Raises `EngineBroke`."""
        while not self._parts:
            if self._complete:
                return b""
            await self._more()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._paused:
            self._paused = False
            self._heard = self._loop.time()
            self._transport.resume_reading()
        return data

    async def _more(self) -> None:
        if self._broke is not None:
            raise EngineBroke(self._broke)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def rest(self) -> None:
        """The answer was read: the connection waits for the next request."""
        self._idle = True
        self.idle_since = self._loop.time()
        self._still()

    def close(self) -> None:
        """Ends it, whatever it was doing."""
        self._break("closed")

    def _break(self, reason: str) -> None:
        self._broke = self._broke or reason
        self._still()
        self._transport.abort()
        self._wake()

    def _still(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._idle:  # nothing was asked
            self._break("unasked")
            return
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(type(error).__name__)
            return
        self._waiting += len(data)
        if self._waiting > _MOST_WAITING and not self._paused and not self._complete:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        unbounded = self.status and b"content-length" not in self.headers and b"transfer-encoding" not in self.headers
        if unbounded and error is None and self._broke is None:
            self._complete = True  # such a body ends with the connection
        self._broke = self._broke or (type(error).__name__ if error else "disconnected")
        self._still()
        self._wake()

    # -- the parser's

    def on_message_begin(self) -> None:
        if self._complete:
            raise EngineBroke("a second answer")  # it would be taken for part of the first

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
        else:
            self.headers.clear()  # an interim answer: the answer follows

    def on_message_complete(self) -> None:
        if not self.status:
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive()


class Connections:
    """Connections to all engines. Close it when nobody asks any more."""

    def __init__(self) -> None:
        self._idle: dict[Origin, deque[Connection]] = {}
        self._used: set[Connection] = set()

    async def ask(
        self, method: str, url: str, headers: dict[str, str], body: bytes = b"", silence_seconds: float | None = None
    ) -> Connection:
        """Sends a request and waits for the answer's head. Raises `EngineBroke`. Give the connection back."""
        scheme, where, path, query, _ = urlsplit(url)
        lines = [f"{method} {path}{query and '?'}{query} HTTP/1.1", f"host: {where}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join((*lines, "", ""))
        if not head.count("\r") == head.count("\n") == len(lines) + 1:
            raise EngineBroke("its address or token has a line's end in it")
        connection = self._take((scheme, where)) or await self._connect((scheme, where))
        self._used.add(connection)
        try:
            connection.ask(head.encode("latin-1", "replace") + body, silence_seconds)
            await connection.head()
        except BaseException:
            self.give_back(connection)
            raise
        return connection

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle.setdefault(origin, deque())
        fresh = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while idle and idle[0].idle_since < fresh:
            idle.popleft().close()
        while idle:
            connection = idle.pop()
            if not connection.broken:
                return connection
        return None

    async def _connect(self, origin: Origin) -> Connection:
        for gone in [origin for origin, idle in self._idle.items() if all(kept.broken for kept in idle)]:
            del self._idle[gone]  # engines come and go
        scheme, where = origin
        split = urlsplit(f"//{where}")
        secure = scheme == "https"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(origin), split.hostname or "", split.port or (443 if secure else 80), ssl=secure
                )
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineBroke(type(error).__name__) from error
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps the connection for another request, if its answer was read to its end."""
        self._used.discard(connection)
        if connection.finished:
            connection.rest()
            self._idle.setdefault(connection.origin, deque()).append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Closes all of them."""
        for connection in [*self._used, *(kept for idle in self._idle.values() for kept in idle)]:
            connection.close()
