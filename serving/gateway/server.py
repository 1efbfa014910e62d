"""The gateway's sockets and servers: one port, and in each worker a uvicorn, a spool and metrics of its own.

The ports are bound before the workers are forked (`workers.py`), and no thread or loop exists then. With one worker
there is no parent.
"""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from math import ceil
from typing import cast

import uvicorn
import uvloop

from ingest.contracts.process_logs import structured
from ingest.spool import SpoolError
from serving.config import GatewaySettings
from serving.gateway.admin import Admin, pipe, tell
from serving.gateway.app import App
from serving.gateway.exchange import Application
from serving.gateway.protocol import Protocol, bounded
from serving.gateway.snapshot import ControlUnreachable
from serving.gateway.workers import CannotStart, supervise

logger = logging.getLogger(__name__)
_END_SECONDS = 10
"""For turns to be recorded and their callers told, once their time is over."""
_GARBAGE = (20_000, 20, 100)
"""Objects between two looks for cycles. A turn makes few: with Python's own the looks took a tenth of a plain turn."""


def bind(host: str, port: int, send_seconds: float) -> socket.socket:
    """A listening socket, whose connections end when their peer takes nothing for so long. Raises `CannotStart`."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ceil(send_seconds * 1000))
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise CannotStart(
            f"{host}:{port} cannot be bound ({error.strerror}): stop what uses it, or name another port"
        ) from error
    sock.set_inheritable(True)
    return sock


def most_connections() -> int:
    """How many clients a process may be connected with. Takes all the files that it is allowed to open.

    A third of them: as many again are for connections to engines, and the rest for what waits to be accepted or closed,
    for the spool and the like. The usual limit of 1024 would have idle clients take them all.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a hard limit above the kernel's own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files // 3


def serve(
    application: Callable[[], App],
    settings: GatewaySettings,
    *,
    host: str,
    port: int,
    admin_port: int | None,
    workers: int,
) -> None:
    """Serves, with one application in each worker, until SIGTERM or SIGINT. Raises `CannotStart`."""
    structured()
    if workers < 1:
        raise CannotStart("--workers must be at least 1")
    public = bind(host, port, settings.send_seconds)
    admin = bind(host, admin_port, settings.send_seconds) if admin_port else None
    pipes = [pipe() for _ in range(workers)]
    most = most_connections()

    def work(index: int) -> None:
        app = application()

        def protocol() -> type[Protocol]:
            return bounded(settings.body_seconds, most, lambda code: app.gateway.metrics.refused(code))

        uvloop.run(_work(app, protocol, index, public, admin, pipes, settings.drain_seconds))

    if workers == 1:
        work(0)
    else:
        supervise(workers, work)


class _Server(uvicorn.Server):
    """uvicorn, with signals left to the worker: it has a spool to close after the last answer."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: Application, protocol: type[Protocol], drain_seconds: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=ceil(drain_seconds + _END_SECONDS),
    )


async def _work(
    app: App,
    protocol: Callable[[], type[Protocol]],
    index: int,
    public: socket.socket,
    admin: socket.socket | None,
    pipes: list[socket.socket],
    drain_seconds: float,
) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        try:
            await app.open(stack)
        except (ControlUnreachable, SpoolError) as error:
            raise CannotStart(str(error)) from error
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked at again
        gc.set_threshold(*_GARBAGE)
        servers = [(_Server(_config(app, protocol(), drain_seconds)), public)]
        if admin is not None:
            telling = await tell(app.gateway.metrics.registry, pipes[index])
            stack.callback(telling.close)
            servers.append((_Server(_config(Admin(pipes), protocol(), drain_seconds)), admin))

        def stop() -> None:
            for server, _ in servers:
                server.should_exit = True
            loop.call_later(drain_seconds, end_turns)

        def end_turns() -> None:
            for connection in list(servers[0][0].server_state.connections):
                cast(Protocol, connection).end_now()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        logger.info("gateway serves on port %d, spool %s", public.getsockname()[1], app.gateway.spool.spool_id)
        await asyncio.gather(*(server.serve(sockets=[listening]) for server, listening in servers))
