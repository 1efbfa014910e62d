"""Which engines are suspected for what they answered: those that fail by themselves, not on one caller's request."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.contracts.fleet import Engine, EngineState
from serving.fleet.health import Suspicion
from serving.gateway.engine_client import EngineAnswer, EngineBroke
from serving.gateway.errors import EngineErred, EngineFailed
from serving.gateway.metrics import Metrics
from serving.gateway.turns import asked


def answer(status: int) -> EngineAnswer:
    """One that has begun, with this status."""
    connection = SimpleNamespace(status=status, headers={})
    return EngineAnswer(connection, b"{}", lambda: None, 2)  # type: ignore[arg-type]


class Fleet:
    """A gateway whose engines, asked in turn, answer what they are told: a status, or 0 for a broken connection."""

    def __init__(self, **statuses: int) -> None:
        self.statuses = statuses
        self.suspicion = Suspicion(time.monotonic)
        self.metrics = Metrics()
        self.engines = self

    async def choose_engine(self, *about: Any) -> Engine:
        tried = about[-1]
        name = next((name for name in self.statuses if name not in tried), tried[0] if tried else "")
        return Engine(engine_id=name, policy="p", url="http://x", token="t", state=EngineState.READY)

    async def ask(self, engine: Engine, *request: Any, stream: bool) -> EngineAnswer:
        status = self.statuses[engine.engine_id]
        if not status:
            raise EngineBroke("ConnectionRefusedError")
        return answer(status)

    async def turn(self) -> int:
        """The status that the caller of one turn gets."""
        turn: Any = SimpleNamespace(
            caller=SimpleNamespace(key=None, turn_id="chatcmpl-1"),
            policy=SimpleNamespace(name="p"),
            dialect=SimpleNamespace(name="chat", path="/v1/chat/completions"),
            ask=SimpleNamespace(stream=False),
            **{"role": "serve", "affinity": "", "version": None, "request_id": "1", "left": False, "overdue": False},
            deadline=asyncio.get_running_loop().time() + 60,
            engine_body=lambda: b"{}",
            dropped=lambda: 0,
        )
        given = await asked(self, turn)  # type: ignore[arg-type]
        assert given is not None
        return given.status

    def suspected(self) -> set[str]:
        return {name for name in self.statuses if self.suspicion.suspected(name)}


@pytest.mark.parametrize("status", [500, 501])
async def test_a_request_that_every_engine_fails_on_makes_none_suspect(status: int) -> None:
    fleet = Fleet(a=status, b=status)
    with pytest.raises(EngineErred):
        await fleet.turn()
    assert fleet.suspected() == set()
    with pytest.raises(EngineErred):
        await Fleet(alone=status).turn()


async def test_an_engine_that_fails_on_what_another_takes_is_suspected() -> None:
    fleet = Fleet(a=500, b=200)
    assert await fleet.turn() == 200
    assert fleet.suspected() == {"a"}


async def test_a_request_that_the_other_engine_refuses_says_nothing_of_the_first() -> None:
    fleet = Fleet(a=500, b=400)
    assert await fleet.turn() == 400
    assert fleet.suspected() == set()


@pytest.mark.parametrize("status", [0, 401, 404, 429, 503])
async def test_an_engine_that_is_not_there_or_refuses_this_gateway_is_suspected(status: int) -> None:
    fleet = Fleet(a=status, b=200)
    assert await fleet.turn() == 200
    assert fleet.suspected() == {"a"}


async def test_a_request_that_not_every_engine_was_there_for_may_come_again() -> None:
    fleet = Fleet(a=500, b=503)
    with pytest.raises(EngineFailed):
        await fleet.turn()
    assert fleet.suspected() == {"b"}
