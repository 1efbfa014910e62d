"""The gateway's HTTP to engines, against a server that sends what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from serving.gateway import engine_connection
from serving.gateway.engine_connection import Connections, EngineBroke

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\nhello"


class Server:
    """Runs `script` for each request; `requests` are what it got, `connections` how many there were."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[Server, Connections, str]]:
    server = Server(script)
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    connections = Connections()
    try:
        yield server, connections, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/path?q=1"
    finally:
        connections.close()
        listening.close()


def sends(*parts: bytes) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return script


async def cuts(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(WHOLE[:-2])
    await writer.drain()
    writer.close()


async def rest(connection: engine_connection.Connection) -> bytes:
    found = []
    while part := await connection.chunk():
        found.append(part)
    return b"".join(found)


async def test_one_connection_carries_one_request_after_the_other() -> None:
    async with serving(sends(WHOLE)) as (server, connections, url):
        for _ in range(3):
            connection = await connections.ask("POST", url, {"x-request-id": "r1"}, b"body")
            assert (connection.status, connection.headers[b"x-name"]) == (200, b"value")
            assert await rest(connection) == b"hello"
            connections.give_back(connection)
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST /path?q=1 HTTP/1.1\r\nhost: 127.0.0.1:")
        assert server.requests[2].endswith(b"x-request-id: r1\r\n\r\nbody")


async def test_interim_answers_are_none() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Name: other\r\nLink: a\r\n\r\n"
    for parts in ((interim + WHOLE,), (interim, WHOLE), tuple(bytes([byte]) for byte in interim + WHOLE)):
        async with serving(sends(*parts)) as (server, connections, url):
            for _ in range(2):
                connection = await connections.ask("GET", url, {})
                assert (connection.status, connection.headers[b"x-name"]) == (200, b"value")
                assert b"link" not in connection.headers
                assert await rest(connection) == b"hello"
                connections.give_back(connection)
            assert server.connections == 1


async def test_a_connection_whose_answer_was_not_read_to_its_end_is_not_used_again() -> None:
    async with serving(sends(WHOLE)) as (server, connections, url):
        connections.give_back(await connections.ask("GET", url, {}))
        connections.give_back(await connections.ask("GET", url, {}))
        assert server.connections == 2


async def test_an_engine_that_ends_the_connection_is_asked_over_another() -> None:
    async def once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE.replace(b"X-Name: value", b"Connection: close"))
        writer.close()

    async with serving(once) as (server, connections, url):
        for _ in range(2):
            connection = await connections.ask("GET", url, {})
            assert await rest(connection) == b"hello"
            connections.give_back(connection)
        assert server.connections == 2


async def test_an_idle_connection_is_left_before_the_engine_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "KEEP_ALIVE_SECONDS", 0.0)
    async with serving(sends(WHOLE)) as (server, connections, url):
        for _ in range(2):
            connection = await connections.ask("GET", url, {})
            await rest(connection)
            connections.give_back(connection)
            await asyncio.sleep(0.01)
        assert server.connections == 2


async def test_a_stream_comes_in_parts_and_ends() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    more = asyncio.Event()

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"5\r\nfirst\r\n")
        await more.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    async with serving(script) as (_, connections, url):
        connection = await connections.ask("POST", url, {})
        assert await connection.chunk() == b"first"
        more.set()
        assert await rest(connection) == b"second"
        assert connection.finished


async def test_an_answer_that_breaks_off_is_told_after_what_came() -> None:
    async with serving(cuts) as (_, connections, url):
        connection = await connections.ask("POST", url, {})
        assert await connection.chunk() == b"hel"
        with pytest.raises(EngineBroke):
            await connection.chunk()


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with serving(script) as (_, connections, url):
        connection = await connections.ask("POST", url, {})
        assert await rest(connection) == b"hello"
        assert not connection.finished


@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n"])
async def test_what_is_no_http_is_an_engine_that_broke(answer: bytes) -> None:
    async with serving(sends(answer)) as (_, connections, url):
        with pytest.raises(EngineBroke):
            await connections.ask("POST", url, {})


async def test_nobody_there_is_an_engine_that_broke() -> None:
    async with serving(sends()) as (_, _, url):
        pass
    with pytest.raises(EngineBroke):
        await Connections().ask("POST", url, {})


async def test_a_stream_in_which_nothing_comes_is_lost() -> None:
    async with serving(sends(WHOLE[:-2])) as (_, connections, url):
        connection = await connections.ask("POST", url, {}, silence_seconds=0.05)
        assert await connection.chunk() == b"hel"
        with pytest.raises(EngineBroke, match="silence"):
            await connection.chunk()


async def test_what_is_not_read_is_not_taken_either() -> None:
    size = 32 << 20
    sent = 0

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    async with serving(script) as (_, connections, url):
        connection = await connections.ask("POST", url, {}, silence_seconds=0.05)
        await asyncio.sleep(0.3)  # longer than silence: it is the reader who is slow
        assert sent < size
        assert len(await rest(connection)) == size


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)
        await asyncio.sleep(0.05)
        writer.write(WHOLE)
        await reader.read()
        ended.set()

    async with serving(script) as (server, connections, url):
        for asked in (1, 2):
            connection = await connections.ask("GET", url, {})
            assert await rest(connection) == b"hello"
            connections.give_back(connection)
            await ended.wait()
            ended.clear()
            assert server.connections == asked


async def test_a_second_answer_in_one_packet_is_no_part_of_the_first() -> None:
    second = b"HTTP/1.1 404 Not Found\r\nX-Name: other\r\nContent-Length: 2\r\n\r\nno"
    async with serving(sends(WHOLE + second)) as (server, connections, url):
        for asked in (1, 2):
            connection = await connections.ask("GET", url, {})
            assert (connection.status, connection.headers[b"x-name"]) == (200, b"value")
            assert await rest(connection) == b"hello"
            connections.give_back(connection)
            assert server.connections == asked


async def test_a_token_cannot_bring_a_header_of_its_own() -> None:
    async with serving(sends(WHOLE)) as (server, connections, url):
        with pytest.raises(EngineBroke):
            await connections.ask("GET", url, {"authorization": "Bearer a\r\nx-more: b"})
        assert server.connections == 0


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with serving(sends()) as (_, connections, url):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connections.ask("POST", url, {})
        assert connections._used == set()
