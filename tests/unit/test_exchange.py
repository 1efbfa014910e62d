"""Headers at the gateway's border: what a caller sends twice, and what it is told."""

from typing import Any

import pytest

from serving.gateway.errors import BadRequest, MethodNotAllowed
from serving.gateway.exchange import Exchange
from serving.gateway.progress import MOST_NAMED, _listed


def exchange(*headers: tuple[bytes, bytes], send: Any = None) -> Exchange:
    return Exchange({"headers": list(headers)}, None, send)  # type: ignore[arg-type]


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
