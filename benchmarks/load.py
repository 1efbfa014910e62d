"""A load generator that costs little: one thread, a handful of connections, no HTTP library.

`closed`: each connection asks again as soon as it was answered. `paced`: requests are due at a fixed rate, and their
times count from when they were due, so that a proxy that falls behind cannot hide it. Every answer is checked for its
end.
"""

import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field

_FRESH_SECONDS = 2.0
"""Servers close connections that were idle for longer."""
_ANSWER_SECONDS = 30.0


@dataclass
class Run:
    """What one run saw. Times in seconds, one for each request; `first` is up to the body's first byte."""

    seconds: float = 0.0
    whole: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Requests answered per second."""
        return len(self.whole) / self.seconds


class WrongAnswer(Exception):
    """An answer that is not what was asked for."""


class _Connection:
    def __init__(self, port: int, ending: bytes) -> None:
        self._port = port
        self._ending = ending
        self._socket: socket.socket | None = None
        self._idle_since = 0.0
        self.fd = -1

    def ask(self, request: bytes, due: float) -> None:
        """Sends the request that was due at `due`."""
        if self._socket is None or due - self._idle_since > _FRESH_SECONDS:
            self.close()
            self._socket = socket.create_connection(("127.0.0.1", self._port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.fd = self._socket.fileno()
        self._due = due
        self._data = b""
        self._body_at = 0
        self._length: int | None = None
        self.first = 0.0
        self._socket.sendall(request)

    def answered(self) -> bool:
        """Reads what has come; whether the answer is whole now."""
        assert self._socket is not None, "it was asked"
        self._data += self._socket.recv(1 << 20)
        if not self._body_at and not self._begin():
            return False
        now = time.perf_counter()
        if not self.first and len(self._data) > self._body_at:
            self.first = now - self._due
        if self._length is None:
            if not self._data.endswith(b"\r\n0\r\n\r\n"):
                return False
        elif len(self._data) < self._body_at + self._length:
            return False
        if self._ending not in self._data[-512:]:
            raise WrongAnswer(self._data.decode(errors="replace")[:2000])
        self.whole = now - self._due
        self._idle_since = now
        return True

    def _begin(self) -> bool:
        at = self._data.find(b"\r\n\r\n")
        if at < 0 and self._data:
            return False
        head = self._data[:at].lower()
        if not head.startswith(b"http/1.1 200"):
            raise WrongAnswer(self._data.decode(errors="replace")[:2000] or "the connection was closed")
        self._body_at = at + 4
        _, found, length = head.partition(b"\r\ncontent-length:")
        if found:
            self._length = int(length.partition(b"\r\n")[0])
        return True

    def close(self) -> None:
        """Whatever it was doing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def closed(port: int, request: bytes, ending: bytes, connections: int, seconds: float, at_most: int = 1 << 60) -> Run:
    """As many requests as `connections` get answered in `seconds`. Raises `WrongAnswer`."""
    return _drive(port, request, ending, connections, seconds, at_most, None)


def paced(port: int, request: bytes, ending: bytes, connections: int, seconds: float, per_second: float) -> Run:
    """Requests at a fixed rate; those that find no free connection wait. Raises `WrongAnswer`."""
    return _drive(port, request, ending, connections, seconds, 1 << 60, 1 / per_second)


def _drive(
    port: int, request: bytes, ending: bytes, connections: int, seconds: float, at_most: int, every: float | None
) -> Run:
    run = Run()
    free = deque(_Connection(port, ending) for _ in range(connections))
    busy: dict[int, _Connection] = {}
    begun = time.perf_counter()
    asked = 0
    try:
        while True:
            now = time.perf_counter()
            open_still = now - begun < seconds and asked < at_most
            while free and open_still:
                due = now if every is None else begun + asked * every
                if due > now or asked >= at_most:
                    break
                connection = free.pop()  # the one used last: the others stay idle where few are needed
                connection.ask(request, due)
                busy[connection.fd] = connection
                asked += 1
            if not open_still and not busy:
                run.seconds = time.perf_counter() - begun
                return run
            wait = _ANSWER_SECONDS
            if every is not None and free and open_still:
                wait = max(0.0, begun + asked * every - time.perf_counter())
            ready = select.select(list(busy), (), (), wait)[0]  # to the microsecond, which epoll is not
            if not ready and wait == _ANSWER_SECONDS:
                raise WrongAnswer(f"no answer within {_ANSWER_SECONDS:.0f} s")
            for fd in ready:
                connection = busy[fd]
                if connection.answered():
                    run.whole.append(connection.whole)
                    run.first.append(connection.first)
                    free.append(busy.pop(fd))
    finally:
        for connection in (*free, *busy.values()):
            connection.close()
