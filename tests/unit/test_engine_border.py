"""Who reaches vLLM's routes at all."""

from typing import Any

import pytest

from serving.vllm_plugin.border import Border
from serving.vllm_plugin.middleware import Shared

TOKEN = "engine-token"


async def reached(scope: dict[str, Any], *headers: tuple[bytes, bytes]) -> tuple[bool, list[Any]]:
    """Whether vLLM's app was called, and what was sent."""
    called, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    await Border(app, Shared(TOKEN))({"headers": list(headers), **scope}, None, send)  # type: ignore[arg-type]
    return bool(called), sent


def http(path: str, method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


@pytest.mark.parametrize(
    "path", ["/invocations", "/tokenize", "/pause", "/v1/chat/completions", "/everloop/swap", "//"]
)
@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"x-everloop-tap", b"wrong"),),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", TOKEN.encode()),),
    ],
)
async def test_without_the_token_nothing_is_reached(path: str, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    called, sent = await reached(http(path), *headers)
    assert not called
    assert sent[0]["status"] == 401
    assert TOKEN.encode() not in sent[1]["body"]


async def test_the_token_opens_everything_and_life_is_shown_to_all() -> None:
    for header in ((b"x-everloop-tap", TOKEN.encode()), (b"authorization", b"bearer " + TOKEN.encode())):
        assert (await reached(http("/invocations"), header))[0]
        assert (await reached({"type": "websocket", "path": "/v1/realtime"}, header))[0]
    assert (await reached(http("/health", "GET")))[0]
    assert not (await reached(http("/health", "POST")))[0]
    assert (await reached({"type": "lifespan"}))[0]
    called, sent = await reached({"type": "websocket", "path": "/v1/realtime"})
    assert (called, sent) == (False, [{"type": "websocket.close", "code": 1008}])
