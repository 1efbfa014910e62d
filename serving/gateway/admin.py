"""The admin port: `/metrics` of all workers, whichever of them is asked.

A worker tells its samples to whoever connects to its pipe, and the one that is asked connects to all pipes. Each sample
gets its worker's number as a label, for a worker that is started again begins at zero: in a series of its own that is a
reset, in a sum over workers it would look like a jump.

A pipe is a Unix socket without a file, made by the parent, so that it outlives a worker and leaves nothing behind.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ingest.contracts.ids import new_id
from serving.gateway.exchange import Exchange

_ANSWER_SECONDS = 2.0


def pipe() -> socket.socket:
    """A new worker's pipe, listening."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind("")  # the kernel chooses a name
    sock.listen()
    sock.setblocking(False)
    return sock


async def tell(registry: CollectorRegistry, own: socket.socket) -> asyncio.Server:
    """Answers on this worker's pipe."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(generate_latest(registry))
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(answer, sock=own)


class Admin:
    """The admin port's application: `/metrics`, and nothing else. `pipes` are those of all workers, in order."""

    def __init__(self, pipes: Sequence[socket.socket]) -> None:
        self._names = [sock.getsockname() for sock in pipes]

    async def __call__(self, exchange: Exchange) -> None:
        exchange.request_id = new_id("req")
        if exchange.path == "/metrics":
            body = merge(await asyncio.gather(*map(_ask, self._names)))
            await exchange.answer(200, body, content_type=b"text/plain; version=0.0.4; charset=utf-8")
        else:
            await exchange.answer(404, b"", content_type=b"text/plain")


async def _ask(name: bytes) -> str:
    """What the worker at this pipe tells; nothing where it is being started again."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            sock.connect(name)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
            text = await reader.read()
            writer.close()
            return text.decode()
    except (OSError, TimeoutError):
        sock.close()
        return ""


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merge(texts: Sequence[str]) -> bytes:
    """The workers' texts as one, each sample with its worker's number."""
    families: dict[str, Metric] = {}
    for worker, text in enumerate(texts):
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [
                sample._replace(labels={**sample.labels, "worker": str(worker)}) for sample in family.samples
            ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry)
