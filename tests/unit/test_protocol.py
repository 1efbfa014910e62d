"""The gateway's HTTP connections: a late head, garbage behind a request, and another request's answer meanwhile."""

import asyncio
import gc
import weakref

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving.gateway.errors import Stopping
from serving.gateway.exchange import Exchange
from serving.gateway.protocol import HEAD_BYTES, MOST_WAITING, Protocol, bounded
from tests.wires import Wire

ASKED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Answering:
    """An application that begins its answer at once, and ends it when it may; what its connection refuses."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.may_end = asyncio.Event()
        self.left = asyncio.Event()
        self.ends = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        with exchange.watched(self.left.set, self.ends.set):
            exchange.start(200, b"text/plain", length=4)
            await exchange.send(b"ab")
            await self.may_end.wait()
            await exchange.end(b"cd")


async def connected(others: Protocol | None = None, most: int = 9) -> tuple[Answering, Protocol, Wire]:
    """A connection; to the same server as `others`, if there are any."""
    app, wire = Answering(), Wire()
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    state = others.server_state if others else ServerState()
    kind = bounded(3600.0, most, app.refused.append)
    kind.idle = others.idle if others else kind.idle
    protocol = kind(config, state, {})
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
    assert app.refused == ["body_timeout"]
    assert wire.closed
    protocol.connection_lost(None)


async def test_garbage_in_mid_answer_ends_the_connection_and_is_no_part_of_the_answer() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED)
    await settle()
    protocol.data_received(b"GARBAGE")
    assert wire.closed
    assert wire.written.endswith(b"ab")
    assert app.refused == ["invalid_request"]
    app.may_end.set()
    protocol.connection_lost(None)


async def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    app, protocol, wire = await connected()
    protocol._head_late()
    assert (wire.closed, wire.written, app.refused) == (True, b"", [])
    protocol.connection_lost(None)


async def test_a_head_may_have_its_full_length_and_no_more() -> None:
    for more, status in ((0, b""), (1, b"HTTP/1.1 431 ")):
        app, protocol, wire = await connected()
        begin = b"GET /health HTTP/1.1\r\nX: "
        protocol.data_received(begin)
        protocol.data_received(b"a" * (HEAD_BYTES - len(begin) + more))
        assert wire.written.startswith(status)
        assert wire.closed == bool(status)
        assert app.refused == ["head_too_large"] * more
        protocol.connection_lost(None)


async def test_a_client_that_leaves_is_missed_by_the_answer_in_progress_also_with_a_request_behind_it() -> None:
    for behind in (b"", ASKED):
        app, protocol, _ = await connected()
        protocol.data_received(ASKED + behind)
        await settle()
        protocol.connection_lost(None)
        assert app.left.is_set()
        app.may_end.set()
        await settle()


async def test_a_request_behind_another_is_answered_after_it() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED + ASKED)
    await settle()
    assert wire.written.count(b"HTTP/1.1 200") == 1
    app.may_end.set()
    await settle()
    assert wire.written.count(b"abcd") == 2
    protocol.shutdown()
    assert wire.closed
    protocol.connection_lost(None)


async def test_the_rest_of_a_body_that_was_answered_is_no_head() -> None:
    app, protocol, wire = await connected()
    app.may_end.set()
    protocol.data_received(b"POST /v1/feedback HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (2 * HEAD_BYTES))
    await settle()
    assert wire.written.endswith(b"abcd")
    for _ in range(2):
        protocol.data_received(b"a" * HEAD_BYTES)
    assert not wire.closed
    protocol.data_received(ASKED)
    await settle()
    assert wire.written.count(b"abcd") == 2
    protocol.connection_lost(None)


async def test_trailers_are_not_read_and_bounded() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(b"POST /v1/feedback HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n")
    assert protocol.cycle is not None
    line = b"authorization: Bearer somebody\r\n"
    for _ in range(HEAD_BYTES // len(line)):
        protocol.data_received(line)
    assert app.refused == []
    assert not protocol.cycle.has(b"authorization")
    assert protocol.headers == [(b"transfer-encoding", b"chunked")]
    protocol.data_received(line * 2)
    assert (app.refused, wire.closed) == (["head_too_large"], True)
    protocol.connection_lost(None)


async def test_an_endless_extension_of_a_chunk_is_bounded() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(b"POST /v1/feedback HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;")
    for _ in range(3):
        protocol.data_received(b"a" * (HEAD_BYTES // 2))
    assert (app.refused, wire.closed) == (["head_too_large"], True)
    protocol.connection_lost(None)


async def test_many_offers_of_another_protocol_in_one_packet_are_answered_one_by_one() -> None:
    app, protocol, wire = await connected()
    app.may_end.set()
    offer = b"GET /health HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n\r\n"
    protocol.data_received(offer * 1000)
    for _ in range(MOST_WAITING):
        await settle()
    assert (wire.written.count(b"abcd"), wire.closed) == (1 + MOST_WAITING, True)
    protocol.connection_lost(None)


@pytest.mark.parametrize("more", [ASKED * 1000, b"garbage", ASKED[:9]])
async def test_of_requests_that_wait_the_last_ends_the_connection_and_no_more_are_read(more: bytes) -> None:
    app, protocol, wire = await connected()
    with_body = b"POST /v1/feedback HTTP/1.1\r\nContent-Length: 2\r\n\r\n"
    protocol.data_received(ASKED * MOST_WAITING + with_body)
    protocol.data_received(b"ab" + more)
    protocol.data_received(more)
    assert (len(protocol.pipeline), app.refused, wire.closed) == (MOST_WAITING, [], False)
    app.may_end.set()
    for _ in range(MOST_WAITING):
        await settle()
        protocol.data_received(more)
    assert (wire.written.count(b"abcd"), wire.closed, app.refused) == (1 + MOST_WAITING, True, [])
    assert wire.written.count(b"connection: close") == 1
    protocol.connection_lost(None)


async def test_garbage_in_the_body_of_the_last_request_that_waits_is_refused() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED * MOST_WAITING + b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert (app.refused, wire.closed) == (["invalid_request"], True)
    protocol.connection_lost(None)


async def test_a_request_that_waits_when_the_process_ends_does_not_begin() -> None:
    app, protocol, _ = await connected()
    protocol.data_received(ASKED * 3)
    await settle()
    protocol.end_now()
    assert app.ends.is_set()
    for exchange, _ in protocol.pipeline:
        with pytest.raises(Stopping):
            await exchange.read_body(10, 60.0, lambda size: None)  # type: ignore[attr-defined]
    protocol.connection_lost(None)


async def test_a_connection_that_ended_in_mid_body_leaves_nothing_behind() -> None:
    app, protocol, _ = await connected()
    app.may_end.set()
    gone = weakref.ref(protocol)
    with_rest = b"POST /v1/feedback HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + b"a" * 70_000
    protocol.data_received(ASKED + ASKED + with_rest)
    protocol.connection_lost(None)
    await settle()
    collected = gc.isenabled()
    gc.disable()
    try:
        del protocol
        assert gone() is None
    finally:
        if collected:
            gc.enable()


async def test_who_answers_hears_that_the_process_waits_no_longer() -> None:
    app, protocol, wire = await connected()
    protocol.data_received(ASKED)
    protocol.end_now()
    assert not app.ends.is_set()  # it has not begun
    await settle()
    protocol.end_now()
    assert app.ends.is_set()
    app.may_end.set()
    await settle()
    assert wire.written.endswith(b"abcd")
    protocol.end_now()
    protocol.connection_lost(None)
    protocol.end_now()


async def test_a_connection_too_many_is_refused_where_all_have_requests() -> None:
    app, protocol, wire = await connected(most=1)
    protocol.data_received(ASKED)
    await settle()
    refusing, refused, refused_wire = await connected(protocol, most=1)
    assert refused_wire.written.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 2\r\n" in refused_wire.written
    assert (refused_wire.closed, refusing.refused) == (True, ["unavailable"])
    refused.connection_lost(None)
    assert wire.written.endswith(b"ab")
    assert not wire.closed
    app.may_end.set()
    await settle()
    protocol.connection_lost(None)
    assert protocol.idle == {}


@pytest.mark.parametrize("begun", [b"", b"GET /hea"])
async def test_the_connection_that_sends_no_request_for_longest_makes_room(begun: bytes) -> None:
    app, oldest, oldest_wire = await connected(most=2)
    _, other, other_wire = await connected(oldest, most=2)
    oldest.data_received(begun)
    _, new, new_wire = await connected(oldest, most=2)
    assert oldest_wire.written.startswith(b"HTTP/1.1 503 ")
    assert (oldest_wire.closed, other_wire.closed, new_wire.closed) == (True, False, False)
    assert app.refused == ["unavailable"]
    assert list(new.idle) == [other, new]
    for protocol in (oldest, other, new):
        protocol.connection_lost(None)
    assert new.idle == {}


async def test_between_two_requests_a_connection_makes_room_without_a_word() -> None:
    app, used, used_wire = await connected(most=2)
    _, other, other_wire = await connected(used, most=2)
    used.data_received(ASKED)
    assert list(used.idle) == [other]
    app.may_end.set()
    await settle()
    assert list(used.idle) == [other, used]
    other_wire.unread = 1
    _, new, _ = await connected(used, most=2)
    assert (used_wire.closed, other_wire.closed) == (True, False)
    assert used_wire.written.endswith(b"abcd")
    assert app.refused == []
    for protocol in (used, other, new):
        protocol.connection_lost(None)
