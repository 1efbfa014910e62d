"""How an answer ends whose time runs out: by whose fault."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.contracts.fleet import Engine
from serving.fleet.health import Suspicion
from serving.gateway.dialects import DIALECTS
from serving.gateway.exchange import Exchange
from serving.gateway.turns import relay

ENGINE = Engine(engine_id="e", policy="p", url="", token="")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


async def for_ever() -> Any:
    await asyncio.Event().wait()


class Streaming:
    """An engine's answer of one event, and then nothing."""

    status, is_stream, content_type, first = 200, True, b"text/event-stream", EVENT
    chunk = staticmethod(for_ever)


@pytest.mark.parametrize("reads", [False, True])
async def test_a_turn_that_takes_too_long_is_lost_by_whom_it_waits_for(reads: bool) -> None:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not reads:
            await for_ever()

    aborted: list[bool] = []
    turn: Any = SimpleNamespace(
        engine=ENGINE,
        dialect=DIALECTS["/v1/chat/completions"],
        deadline=asyncio.get_running_loop().time() + 0.05,
        left=False,
        abort=lambda: aborted.append(True),
        renamed=lambda data: data,
        headers=lambda version: [],
    )
    suspicion = Suspicion(lambda: 0.0)
    gateway: Any = SimpleNamespace(suspicion=suspicion)
    answer: Any = Streaming()
    ending = await relay(gateway, turn, answer, Exchange({"headers": []}, for_ever, send))
    assert aborted == [True]
    assert (ending.lost, ending.left) == (reads, not reads)
    assert suspicion.suspected("e") is reads
