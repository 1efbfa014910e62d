"""The gateway's side of an engine's HTTP interface.

An engine is asked with the tap's header, so that its record comes with the answer (`ingest.contracts.tap`),
and with `X-Request-Id`, from which it makes the id that its answer carries: the turn's.
"""

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from ingest.contracts.fleet import Engine
from ingest.contracts.tap import LENGTH_HEADER, REQUEST_HEADER, TapRecord
from serving.gateway.stream import decode_record

KEEP_ALIVE_SECONDS = 3.0
"""Below the engine's own (5 s in vLLM), so that a request never meets a connection about to be closed."""
CONNECT_SECONDS = 5.0
ABORT_SECONDS = 5.0
RECORD_WAIT_SECONDS = 4
"""How long an engine may wait for a request to end before it says that it has no record."""


_NOT_THE_CALLERS = frozenset({401, 403, 404, 429})
"""What an engine answers to a gateway whose token or model name is wrong, or when it has no room."""


class EngineBroke(Exception):
    """The engine could not be reached, or broke off."""


class EngineAnswer:
    """An answer that has begun. `first` are its first bytes, empty where it has none."""

    __slots__ = ("_response", "content_type", "first", "is_stream", "status")

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self._response = response
        self.first = first
        self.status = response.status
        self.content_type = response.headers.get("content-type", "application/json").encode("latin-1")
        self.is_stream = self.content_type.startswith(b"text/event-stream")

    @property
    def refused(self) -> bool:
        """Whether this is the engine's failure, or its refusal of this gateway, not the caller's error."""
        return self.status >= 500 or self.status in _NOT_THE_CALLERS or (self.is_stream and not self.first)

    async def chunk(self) -> bytes:
        """The next bytes of a stream, empty at its end. Raises `EngineBroke`."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineBroke(type(error).__name__) from error

    def close(self) -> None:
        """Gives the connection back, or closes it where the answer was not read to its end."""
        self._response.close() if not self._response.content.at_eof() else self._response.release()

    async def read(self) -> tuple[bytes, TapRecord | None]:
        """The body without the tap's record, and the record. Raises `EngineBroke`."""
        try:
            data = self.first + await self._response.content.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineBroke(type(error).__name__) from error
        length = self._response.headers.get(LENGTH_HEADER, "")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            return data, None
        return data[: -int(length)], decode_record(data[-int(length) :])


class EngineClient:
    """Connections to all engines, kept open between requests."""

    def __init__(self, silence_seconds: float) -> None:
        """`silence_seconds`: a stream in which nothing comes for so long is taken for lost."""
        self._patient = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._streaming = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        self._urls: dict[tuple[str, str], URL] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=self._patient,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()

    async def ask(self, engine: Engine, path: str, body: bytes, request_id: str, *, stream: bool) -> EngineAnswer:
        """Sends a request and waits for the answer's first bytes. Raises `EngineBroke`.

        A JSON answer has its first byte when all of it was generated: how long that may take is up to who asks.
        """
        headers = self.headers(engine, request_id)
        try:
            response = await self._session.post(
                self._url(engine, path),
                data=body,
                headers=headers,
                timeout=self._streaming if stream else self._patient,
            )
            try:
                return EngineAnswer(response, await response.content.readany())
            except BaseException:
                response.close()
                raise
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineBroke(type(error).__name__) from error

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
        try:
            async with (
                asyncio.timeout(ABORT_SECONDS),
                self._session.post(
                    self._url(engine, "/everloop/abort"), json={"request_id": request_id}, headers=_own(engine)
                ),
            ):
                pass
        except (aiohttp.ClientError, TimeoutError):
            return

    async def record(self, engine: Engine, request_id: str) -> TapRecord | None:
        """The record of a request whose answer was cut, from the engine's own store; None where it has none."""
        url = URL(f"{engine.url}/everloop/records/{request_id}?wait={RECORD_WAIT_SECONDS}")
        try:
            async with asyncio.timeout(ABORT_SECONDS), self._session.get(url, headers=_own(engine)) as response:
                return decode_record(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _url(self, engine: Engine, path: str) -> URL:
        url = self._urls.get((engine.url, path))
        if url is None:
            url = self._urls[engine.url, path] = URL(engine.url + path)
        return url


def _own(engine: Engine) -> dict[str, str]:
    return {"authorization": f"Bearer {engine.token}", REQUEST_HEADER: engine.token}
