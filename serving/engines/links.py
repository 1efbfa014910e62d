"""The two HTTP sides of an engine's agent: its own engine's plugin, and control."""

from typing import Any, TypeVar

import aiohttp
import msgspec

from ingest.contracts.fleet import Assignment, Heartbeat, Reference, Swap
from ingest.contracts.tap import REQUEST_HEADER
from serving.fleet.swap import EngineInfo, ScoreRequest, SwapRequest

T = TypeVar("T")


class EngineError(RuntimeError):
    """The engine did not answer, or refused: says what it said."""


class ControlAway(RuntimeError):
    """Control did not answer, or does not know this policy or token, yet: asking again may help."""


class ControlRefused(RuntimeError):
    """Control does not take what it was told: asking again will not help. Says what it said."""


class EngineLink:
    """The plugin's routes of one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {REQUEST_HEADER: token}

    async def state(self) -> EngineInfo:
        """Raises `EngineError` while the engine is not up."""
        return await self._call("GET", "/everloop/state", None, EngineInfo, 5.0)

    async def measure(self) -> Reference:
        """How the weights that serve now behave; `EngineError` where that is no finite number, as of damaged ones."""
        scored = await self._call("POST", "/everloop/score", ScoreRequest(), dict, 600.0)
        try:
            return msgspec.convert(scored, Reference)
        except msgspec.ValidationError as error:  # JSON has no infinity and no NaN: both come as null
            raise EngineError(f"its logprobs on the fixed sequences are not finite numbers ({error})") from error

    async def swap(self, request: SwapRequest) -> Swap:
        """The swap's record, `error` in it where it was rolled back; `EngineError` where it was refused, or worse."""
        return await self._call("POST", "/everloop/swap", request, Swap, 1800.0, accept=(200, 409))

    async def _call(
        self, method: str, path: str, body: Any, kind: type[T], seconds: float, accept: tuple[int, ...] = (200,)
    ) -> T:
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=None if body is None else msgspec.json.encode(body),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{path}: {type(error).__name__}") from error
        if response.status not in accept:
            raise EngineError(f"{path}: {_sentence(data, response.status)}")
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise EngineError(f"{path}: the answer cannot be read: {error}") from error


class ControlLink:
    """Control's routes that agents use."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def heartbeat(self, engine_id: str, beat: Heartbeat) -> Assignment:
        """Says where the engine stands, gets what it should serve."""
        data = await self._call("POST", f"/v1/engines/{engine_id}/heartbeat", beat)
        try:
            return msgspec.json.decode(data, type=Assignment)
        except msgspec.MsgspecError as error:
            raise ControlAway(f"what answers at {self._url} is not control: {error}") from error

    async def report(self, swap: Swap) -> None:
        """Records a swap."""
        await self._call("POST", "/v1/swaps", swap)

    async def put_reference(self, policy: str, reference: Reference) -> None:
        """Records how a cold load behaves."""
        await self._call("PUT", f"/v1/policies/{policy}/references", reference)

    async def leave(self, engine_id: str) -> None:
        """The engine is gone for good."""
        await self._call("DELETE", f"/v1/engines/{engine_id}", None)

    async def _call(self, method: str, path: str, body: Any) -> bytes:
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=None if body is None else msgspec.json.encode(body),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=5.0),
            ) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ControlAway(f"{method} {path}: {type(error).__name__}") from error
        if response.status >= 300:
            refused = 400 <= response.status < 500 and response.status not in (401, 404)
            raise (ControlRefused if refused else ControlAway)(f"{method} {path}: {_sentence(data, response.status)}")
        return data


def _sentence(data: bytes, status: int) -> str:
    try:
        return str(msgspec.json.decode(data)["error"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"status {status}"
