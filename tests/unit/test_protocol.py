"""The gateway's HTTP connections: a late head, garbage behind a request, and another request's answer meanwhile."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from serving.gateway.protocol import HEAD_BYTES, Protocol, bounded

ASKED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and what was counted as refused."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False
        self.refused: list[str] = []

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Answering:
    """An application that begins its answer at once, and ends it when it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"cd"})


async def connected() -> tuple[Answering, Protocol, Wire]:
    app, wire = Answering(), Wire()
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    protocol = bounded(3600.0, wire.refused.append)(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(wire)
    return app, protocol, wire


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_late_head_waits_for_the_answer_before_it() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED + b"GET /v1/messages HTTP")
    await settle()
    protocol._head_late()
    assert wire.written.endswith(b"ab")
    assert not wire.closed
    app.may_end.set()
    await settle()
    assert wire.written.endswith(b"abcd")
    protocol._head_late()
    assert b"HTTP/1.1 408 " in wire.written
    assert b'{"type":"error"' in wire.written
    assert wire.refused == ["body_timeout"]
    assert wire.closed
    protocol.connection_lost(None)


async def test_garbage_in_mid_answer_ends_the_connection_and_is_no_part_of_the_answer() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED)
    await settle()
    protocol.data_received(b"GARBAGE")
    assert wire.closed
    assert wire.written.endswith(b"ab")
    assert wire.refused == ["invalid_request"]
    app.may_end.set()
    protocol.connection_lost(None)


async def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    _, protocol, wire = await connected()
    protocol._head_late()
    assert (wire.closed, wire.written, wire.refused) == (True, b"", [])
    protocol.connection_lost(None)


async def test_a_head_may_have_its_full_length_and_no_more() -> None:
    for more, status in ((0, b""), (1, b"HTTP/1.1 431 ")):
        _, protocol, wire = await connected()
        begin = b"GET /health HTTP/1.1\r\nX: "
        protocol.data_received(begin)
        protocol.data_received(b"a" * (HEAD_BYTES - len(begin) + more))
        assert wire.written.startswith(status)
        assert wire.closed == bool(status)
        assert wire.refused == ["head_too_large"] * more
        protocol.connection_lost(None)
