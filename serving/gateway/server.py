"""Worker processes: one socket, several uvicorn servers, each with its own spool and metrics.

The parent binds the port, forks the workers before any thread or loop exists, and starts a worker again that
died. A worker dies with its parent. With one worker there is no parent.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from math import ceil
from pathlib import Path

import uvicorn
import uvloop
from prometheus_client import generate_latest

from ingest.spool import SpoolError
from serving.config import GatewaySettings
from serving.gateway.app import App
from serving.gateway.exchange import Receive, Scope, Send
from serving.gateway.metrics import Metrics
from serving.gateway.snapshot import ControlUnreachable

log = logging.getLogger(__name__)
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_CANNOT_START = 2
_RESTART_SECONDS = 1.0
_DRAIN_SECONDS = 30
_PR_SET_PDEATHSIG = 1


class CannotStart(Exception):
    """Why the gateway does not start, in one sentence."""


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


def serve(
    *,
    host: str,
    port: int,
    admin_port: int | None,
    workers: int,
    control: str,
    control_token: str,
    hash_secret: bytes,
    spool: Path,
    snapshot: Path,
    settings: GatewaySettings,
) -> None:
    """Serves until SIGTERM or SIGINT. Raises `CannotStart`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if workers < 1:
        raise CannotStart("--workers must be at least 1")
    public = bind(host, port, settings.send_seconds)
    admin = (
        [bind(host, admin_port + i, settings.send_seconds) for i in range(workers)] if admin_port else [None] * workers
    )

    def work(index: int) -> None:
        app = App(
            settings=settings,
            control=control,
            control_token=control_token,
            hash_secret=hash_secret,
            spool=spool,
            snapshot=snapshot,
            workers=workers,
        )
        _run_worker(app, public, admin[index])

    if workers == 1:
        work(0)
    else:
        _supervise(workers, work)


class _Server(uvicorn.Server):
    """uvicorn, with signals left to the worker: it has a spool to close after the last answer."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )


def _run_worker(app: App, public: socket.socket, admin: socket.socket | None) -> None:
    uvloop.run(_work(app, public, admin))


async def _work(app: App, public: socket.socket, admin: socket.socket | None) -> None:
    async with AsyncExitStack() as stack:
        try:
            await app.open(stack)
        except (ControlUnreachable, SpoolError) as error:
            raise CannotStart(str(error)) from error
        servers = [(_Server(_config(app)), public)]
        if admin is not None:
            servers.append((_Server(_config(metrics_app(app.gateway.metrics))), admin))

        def stop() -> None:
            for server, _ in servers:
                server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        log.info("gateway serves on port %d, spool %s", public.getsockname()[1], app.gateway.spool.spool_id)
        await asyncio.gather(*(server.serve(sockets=[listening]) for server, listening in servers))


def metrics_app(metrics: Metrics) -> ASGIApp:
    """The admin port: `/metrics`, and nothing else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["type"] == "http" and scope["path"] == "/metrics"
        body = generate_latest(metrics.registry) if found else b""
        headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _supervise(workers: int, work: Callable[[int], None]) -> None:
    """Forks the workers, and again each that dies, until a signal stops them all."""
    children: dict[int, int] = {}
    stopping = False
    reasons, tell = os.pipe()
    """Why a worker cannot start: the parent says it, once."""

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in children:
            os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for index in range(workers):
        children[_fork(index, work, tell)] = index
    while children:
        pid, status = os.wait()
        index = children.pop(pid)
        if os.waitstatus_to_exitcode(status) == _CANNOT_START:
            stop(signal.SIGTERM, None)
            while children:
                children.pop(os.wait()[0])
            raise CannotStart(os.read(reasons, 4096).decode().splitlines()[0])
        if not stopping:
            log.error("worker %d died (%s): it is started again", index, os.waitstatus_to_exitcode(status))
            time.sleep(_RESTART_SECONDS)
            children[_fork(index, work, tell)] = index


def _fork(index: int, work: Callable[[int], None], tell: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(index)
        code = 0
    except CannotStart as error:
        os.write(tell, f"{error}\n".encode())
        code = _CANNOT_START
    finally:
        sys.stderr.flush()
        os._exit(code)
