"""Headers and bodies at the gateway's border: what a caller sends twice, what it is told, what is read of it."""

import asyncio
from typing import Any

import pytest

from serving.gateway.errors import BadRequest, BodyTimeout, MethodNotAllowed, Unavailable
from serving.gateway.exchange import Exchange
from serving.gateway.places import Places
from serving.gateway.progress import MOST_NAMED, _listed


def exchange(*headers: tuple[bytes, bytes], send: Any = None, receive: Any = None) -> Exchange:
    return Exchange({"headers": list(headers)}, receive, send)


def test_a_header_that_is_read_must_not_come_twice() -> None:
    twice = exchange((b"authorization", b"Bearer a"), (b"via", b"a"), (b"via", b"b"), (b"authorization", b"Bearer b"))
    assert twice.has(b"authorization")
    with pytest.raises(BadRequest, match="authorization"):
        twice.header(b"authorization")
    assert twice.header(b"x-api-key") is None
    proxied = exchange((b"authorization", b"Bearer a"), (b"via", b"a"), (b"via", b"b"))
    assert proxied.header(b"authorization") == "Bearer a"


async def test_a_response_that_could_not_begin_has_not_begun() -> None:
    async def send(message: Any) -> None:
        raise RuntimeError("Invalid HTTP header value.")

    broken = exchange(send=send)
    with pytest.raises(RuntimeError):
        await broken.start(200, b"text/plain")
    assert not broken.started


async def test_a_wrong_method_hears_the_right_ones() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await exchange(send=send).fail(MethodNotAllowed("No.", "GET, HEAD"), b"{}", b"")
    assert (b"allow", b"GET, HEAD") in sent[0]["headers"]


def test_names_of_what_was_dropped_fit_into_a_header() -> None:
    assert _listed(["a", "b\r\n\x00\x02\x7fc", "ü\t"]) == b"a, bc, ?"
    assert _listed(["x"] * (MOST_NAMED + 2)).endswith(b", and 2 more")
    assert len(_listed(["x" * 5000])) == 1000


def coming(*parts: bytes, each_seconds: float = 0.0) -> Any:
    """What gives the parts of a body, and then nothing any more."""
    left = list(parts)

    async def receive() -> Any:
        await asyncio.sleep(each_seconds)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def test_a_declared_length_has_its_room_before_the_body_is_read() -> None:
    places = Places(10, 100)

    async def receive() -> Any:
        assert places.bytes == 60
        raise KeyError("asked for the body")

    declaring = exchange((b"content-length", b"60"), receive=receive)
    with places.hold() as one, places.hold() as two:
        with pytest.raises(KeyError):
            await declaring.read_body(1000, 10.0, one.reserve)
        with pytest.raises(Unavailable):
            await declaring.read_body(1000, 10.0, two.reserve)
    assert places.bytes == 0


async def test_a_body_without_a_length_has_its_room_as_it_comes() -> None:
    places = Places(10, 100)
    with places.hold() as one, places.hold() as two:
        parts = (b"a" * 30, b"b" * 30)
        assert await exchange(receive=coming(*parts)).read_body(1000, 10.0, one.reserve) == b"".join(parts)
        assert places.bytes == 60
        with pytest.raises(Unavailable):
            await exchange(receive=coming(*parts)).read_body(1000, 10.0, two.reserve)
        assert places.bytes == 90


async def test_a_body_that_trickles_has_the_time_of_one() -> None:
    slow = exchange(receive=coming(b"a", b"b", each_seconds=0.15))
    with pytest.raises(BodyTimeout):
        await slow.read_body(1000, 0.2, Places(10, 100).hold().__enter__().reserve)
