"""A request and its response at the gateway's border: headers, bodies, and how they go out."""

import asyncio
import tracemalloc

import pytest

from serving.gateway.errors import BadRequest, BodyTimeout, MethodNotAllowed, Stopping, TooLarge, Unavailable
from serving.gateway.exchange import ClientLeft, Exchange
from serving.gateway.places import Place, Places
from serving.gateway.progress import MOST_NAMED, _listed
from tests.wires import Connected, exchange


def test_a_header_that_is_read_must_not_come_twice() -> None:
    twice = exchange((b"authorization", b"Bearer a"), (b"via", b"a"), (b"via", b"b"), (b"authorization", b"Bearer b"))
    assert twice.has(b"authorization")
    with pytest.raises(BadRequest, match="authorization"):
        twice.header(b"authorization")
    assert twice.header(b"x-api-key") is None
    proxied = exchange((b"authorization", b"Bearer a"), (b"via", b"a"), (b"via", b"b"))
    assert proxied.header(b"authorization") == "Bearer a"


async def test_a_response_that_could_not_begin_has_not_begun() -> None:
    line = Connected()
    broken = exchange(line=line)
    with pytest.raises(ValueError, match="line's end"):
        broken.start(200, b"text/plain", [(b"x-a", b"b\r\nset-cookie: c")])
    assert not broken.started
    await broken.answer(500, b"{}")
    assert line.transport.writes[0].startswith(b"HTTP/1.1 500 ")


async def test_an_answer_is_one_write() -> None:
    line = Connected()
    asked = exchange(line=line)
    await asked.answer(200, b"{}", [(b"x-a", b"b")])
    (written,) = line.transport.writes
    assert written.endswith(b"\r\nx-a: b\r\ncontent-length: 2\r\n\r\n{}")
    assert (line.completed, line.transport.closed) == (1, False)


async def test_nothing_goes_out_after_an_answers_end() -> None:
    line = Connected()
    asked = exchange(line=line)

    async def fails_too_late(exchange: Exchange) -> None:
        await exchange.answer(200, b"{}")
        await exchange.fail(BadRequest("late"), b"{}", b"event")

    await asked.run_asgi(fails_too_late)
    assert (len(line.transport.writes), line.completed, line.transport.closed) == (1, 1, False)


async def test_an_answer_without_an_end_ends_the_connection() -> None:
    line = Connected()

    async def begins(exchange: Exchange) -> None:
        exchange.start(200, b"text/event-stream")
        await exchange.send(b"a")

    await exchange(line=line).run_asgi(begins)
    assert (line.completed, line.transport.closed) == (0, True)


async def test_a_streams_head_goes_out_with_its_first_bytes() -> None:
    line = Connected()
    asked = exchange(line=line)
    asked.start(200, b"text/event-stream")
    assert line.transport.writes == []
    await asked.send(b"0123456789abcdef")
    await asked.end(b"z")
    first, last = line.transport.writes
    assert first.endswith(b"transfer-encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n")
    assert last == b"1\r\nz\r\n0\r\n\r\n"


async def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    line = Connected()
    old = exchange(line=line, http_1_1=False, keep_alive=False)
    old.start(200, b"text/event-stream")
    await old.send(b"ab")
    await old.end()
    head, _, body = line.transport.written.partition(b"\r\n\r\n")
    assert (body, line.transport.closed) == (b"ab", True)
    assert b"chunked" not in head
    assert head.endswith(b"connection: close")


async def test_who_waits_for_a_body_or_watches_hears_that_the_client_left() -> None:
    waiting = exchange()
    task = reading(waiting, Place(Places(10, 100)))
    await asyncio.sleep(0)
    waiting.lost()
    with pytest.raises(ClientLeft):
        await task

    heard: list[str] = []
    line = Connected()
    watching = exchange(line=line)
    watching.received_all()
    with watching.watched(lambda: heard.append("left")):
        watching.lost()
        await watching.end(b"nobody reads it")
    assert (heard, line.transport.writes, line.completed) == (["left"], [], 0)
    with watching.watched(lambda: heard.append("had left")):
        pass
    assert heard == ["left", "had left"]


def reading(asked: Exchange, place: Place, limit: int = 1000, seconds: float = 60.0) -> asyncio.Future[bytes]:
    return asyncio.ensure_future(asked.read_body(limit, seconds, place.reserve))


async def coming(asked: Exchange, *parts: bytes) -> None:
    for part in parts:
        await asyncio.sleep(0)
        asked.received(part)
    await asyncio.sleep(0)


async def test_a_body_is_read_up_to_its_bound() -> None:
    place = Place(Places(10, 1000))
    small = exchange()
    body = reading(small, place, limit=4)
    await coming(small, b"ab", b"cd")
    small.received_all()
    assert await body == b"abcd"

    large = exchange()
    body = reading(large, place, limit=4)
    await coming(large, b"ab", b"cde")  # and more to come, which nobody waits for
    with pytest.raises(TooLarge):
        await body
    declaring = exchange((b"content-length", b"5"))
    with pytest.raises(TooLarge):
        await reading(declaring, place, limit=4)


async def test_a_declared_length_has_its_room_before_the_body_is_read() -> None:
    places = Places(10, 100)
    with places.hold() as one, places.hold() as two:
        body = reading(exchange((b"content-length", b"60")), one)
        await asyncio.sleep(0)
        assert places.bytes == 60
        with pytest.raises(Unavailable):
            await reading(exchange((b"content-length", b"60")), two)
        body.cancel()
    assert places.bytes == 0


async def test_a_body_without_a_length_has_its_room_as_it_comes() -> None:
    places, parts = Places(10, 100), (b"a" * 30, b"b" * 30)
    with places.hold() as one, places.hold() as two:
        for place, taken in ((one, 60), (two, 90)):
            asked = exchange()
            body = reading(asked, place)
            await coming(asked, *parts)
            assert places.bytes == taken
            if place is two:
                with pytest.raises(Unavailable):
                    await body
            else:
                asked.received_all()
                assert await body == b"".join(parts)


async def test_a_body_in_chunks_of_two_bytes_takes_about_as_much_memory_as_it_has_bytes() -> None:
    asked = exchange()
    tracemalloc.start()
    try:
        for number in range(1 << 16):
            asked.received(number.to_bytes(2, "big"))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 3 * (2 << 16)
    asked.received_all()
    body = await reading(asked, Place(Places(10, 1 << 20)), limit=1 << 20)
    assert body == b"".join(number.to_bytes(2, "big") for number in range(1 << 16))


async def test_a_body_that_trickles_has_the_time_of_one() -> None:
    slow = exchange()
    body = reading(slow, Place(Places(10, 100)), seconds=0.2)
    for _ in range(3):
        await asyncio.sleep(0.09)
        slow.received(b"a")
    with pytest.raises(BodyTimeout):
        await body


async def test_when_the_process_ends_nobody_waits_for_a_body_or_for_what_begins_then() -> None:
    for came in (b"", b"ab"):
        asked = exchange()
        body = reading(asked, Place(Places(10, 100)))
        await coming(asked, came)
        asked.end_now()
        with pytest.raises(Stopping):
            await body

    whole = exchange()
    whole.received_all()
    whole.end_now()
    with pytest.raises(Stopping):
        await reading(whole, Place(Places(10, 100)))


async def test_a_wrong_method_hears_the_right_ones() -> None:
    line = Connected()
    await exchange(line=line).fail(MethodNotAllowed("No.", "GET, HEAD"), b"{}", b"")
    assert b"\r\nallow: GET, HEAD\r\n" in line.transport.writes[0]


def test_names_of_what_was_dropped_fit_into_a_header() -> None:
    assert _listed(["a", "b\r\n\x00\x02\x7fc", "ü\t"]) == b"a, bc, ?"
    assert _listed(["x"] * (MOST_NAMED + 2)).endswith(b", and 2 more")
    assert len(_listed(["x" * 5000])) == 1000
