"""The gateway's side of an engine's HTTP interface.

An engine is asked with the tap's header, so that its record comes with the answer (`ingest.contracts.tap`),
and with `X-Request-Id`, from which it makes the id that its answer carries: the turn's.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec

from ingest.contracts.fleet import Engine
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, TapRecord
from serving.gateway.engine_connection import Connection, Connections, EngineBroke
from serving.gateway.errors import TooLarge
from serving.gateway.stream import decode_record

__all__ = ["EngineAnswer", "EngineBroke", "EngineClient"]
OWN_SECONDS = 5.0
"""How long an answer of the plugin's own routes is waited for."""
RECORD_WAIT_SECONDS = 4
"""How long an engine may wait for a request to end before it says that it has no record."""


_NOT_THE_CALLERS = frozenset({401, 403, 404, 429})
"""What an engine answers to a gateway whose token or model name is wrong, or when it has no room."""
_ERRED = frozenset({500, 501})
"""What vLLM answers where its code raises on a request, and where it says that something is not implemented."""


class EngineAnswer:
    """An answer that has begun, of at most `most` bytes. `first` are its first bytes, empty where it has none."""

    __slots__ = ("_connection", "_end", "_left", "_most", "content_type", "first", "is_stream", "status")

    def __init__(self, connection: Connection, first: bytes, end: Callable[[], None], most: int) -> None:
        self._connection = connection
        self._end = end
        self._most = most
        self._left = most - len(first)
        self.first = first
        self.status = connection.status
        self.content_type = connection.headers.get(b"content-type", b"application/json")
        self.is_stream = self.content_type.startswith(b"text/event-stream")

    @property
    def erred(self) -> bool:
        """Whether the engine is there, and failed on this request: by a bug of its own, or it lacks what is asked."""
        return self.status in _ERRED

    @property
    def refused(self) -> bool:
        """Whether this is the engine's failure, or its refusal of this gateway, not the caller's error."""
        return self.status >= 500 or self.status in _NOT_THE_CALLERS or (self.is_stream and not self.first)

    async def chunk(self) -> bytes:
        """The next bytes, empty at the end. Raises `EngineBroke`, `TooLarge`."""
        data = await self._connection.chunk()
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge(f"The answer is above {self._most} bytes: ask for fewer samples, tokens or logprobs.")
        return data

    def close(self) -> None:
        """Gives the connection back, or closes it where the answer was not read to its end. To be called once."""
        self._end()

    async def read(self) -> tuple[bytes, TapRecord | None]:
        """The body without the tap's record, and the record. Raises `EngineBroke`, `TooLarge`."""
        data = await _rest(self.chunk, self.first)
        length = self._connection.headers.get(LENGTH_HEADER.encode(), b"")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            return data, None
        return data[: -int(length)], decode_record(data[-int(length) :])


class EngineClient:
    """Connections to all engines, kept open between requests."""

    def __init__(self, silence_seconds: float, most_bytes: int) -> None:
        """`silence_seconds`: a stream in which nothing comes for so long is taken for lost. Of no answer more than
        `most_bytes` are read."""
        self._silence_seconds = silence_seconds
        self._most_bytes = most_bytes
        self._connections = Connections()
        self.loads: Counter[str] = Counter()
        """Requests in flight at each engine, for routing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connections.close()

    async def ask(self, engine: Engine, path: str, body: bytes, request_id: str, *, stream: bool) -> EngineAnswer:
        """Sends a request and waits for the answer's first bytes. Raises `EngineBroke`.

        A JSON answer has its first byte when all of it was generated: how long that may take is up to who asks.
        """
        silence = self._silence_seconds if stream else None
        headers = self.headers(engine, request_id)
        self.loads[engine.engine_id] += 1
        connection: Connection | None = None

        def end() -> None:
            self.loads[engine.engine_id] -= 1
            if connection is not None:
                self._connections.give_back(connection)

        try:
            connection = await self._connections.ask("POST", engine.url + path, headers, body, silence)
            return EngineAnswer(connection, await connection.chunk(), end, self._most_bytes)
        except BaseException:
            end()
            raise

    def headers(self, engine: Engine, request_id: str) -> dict[str, str]:
        """What a request to an engine says of itself; nothing of what its caller's headers say."""
        return {
            "content-type": "application/json",
            "authorization": f"Bearer {engine.token}",
            REQUEST_HEADER: engine.token,
            "x-request-id": request_id,
        }

    async def abort(self, engine: Engine, request_id: str) -> None:
        """Ends a request in the engine; an engine that cannot be reached ends it by itself."""
        await self._own(engine, "POST", "/everloop/abort", msgspec.json.encode({"request_id": request_id}))

    async def record(self, engine: Engine, request_id: str) -> TapRecord | None:
        """The record of a request whose answer was cut, from the engine's own store; None where it has none."""
        found = await self._own(engine, "GET", f"/everloop/records/{request_id}?wait={RECORD_WAIT_SECONDS}")
        return decode_record(found)

    async def _own(self, engine: Engine, method: str, path: str, body: bytes = b"") -> bytes:
        """The answer of one of the plugin's routes; empty where it is none, or late."""
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {engine.token}",
            REQUEST_HEADER: engine.token,
        }
        try:
            async with asyncio.timeout(OWN_SECONDS):
                connection = await self._connections.ask(method, engine.url + path, headers, body)
                try:
                    answer = await _rest(connection.chunk)
                finally:
                    self._connections.give_back(connection)
                return answer if connection.status == 200 else b""
        except (EngineBroke, TimeoutError):
            return b""


async def _rest(chunk: Callable[[], Awaitable[bytes]], first: bytes = b"") -> bytes:
    """All of a body, of which `first` was read before. Raises what `chunk` raises."""
    parts = [first]
    while part := await chunk():
        parts.append(part)
    return b"".join(parts)
