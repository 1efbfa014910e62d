"""The client's end of a gateway's connection, for tests without sockets: a transport that keeps what is written."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from serving.gateway.exchange import Exchange


class Wire(asyncio.Transport):
    """Keeps each write, and tells `heard` of it."""

    def __init__(self, heard: Callable[[bytes], None] = lambda data: None) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.unread = 0
        """Bytes that the client has not taken."""
        self._heard = heard

    @property
    def written(self) -> bytes:
        """All of it."""
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        self.writes.append(data)
        self._heard(data)

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Connected:
    """What an exchange sees of its connection."""

    def __init__(self, wire: Wire | None = None) -> None:
        self.transport = wire or Wire()
        self.flow = FlowControl(self.transport)
        self.completed = 0

    def on_response_complete(self) -> None:
        self.completed += 1


def exchange(
    *headers: tuple[bytes, bytes], line: Connected | None = None, method: str = "POST", path: str = "/", **named: Any
) -> Exchange:
    """A request, and where its answer goes."""
    return Exchange(line or Connected(), method, path, list(headers), **named)
