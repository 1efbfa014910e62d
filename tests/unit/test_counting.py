"""`/v1/messages/count_tokens` with engines that fail: what its caller gets, and what is held meanwhile."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.contracts.fleet import Engine, EngineState, Key, Policy, Role, Snapshot, Version
from serving.config import GatewaySettings
from serving.gateway import counting
from serving.gateway.auth import digest_key
from serving.gateway.dialects import DIALECTS
from serving.gateway.engine_client import EngineBroke
from serving.gateway.errors import EngineErred, EngineFailed, GatewayError, Stopping
from serving.gateway.exchange import ClientLeft, Exchange
from serving.gateway.gateway import Gateway
from serving.gateway.snapshot import View
from tests.wires import Connected, exchange

SNAPSHOT = Snapshot(
    revision=1,
    keys=(Key(key_id="k", name="n", digest=digest_key("el-key"), roles=(Role.INFERENCE,), created_at=0.0),),
    policies=(Policy(name="p", desired=Version("v", "/v")),),
    engines=tuple(
        Engine(engine_id=name, policy="p", url=f"http://{name}", token="t", state=EngineState.READY) for name in "ab"
    ),
    opted_out=(),
)
STATUSES = {"good": 200, "erring": 500, "refusing": 401, "wrong": 400}


class Engines:
    """Engines that are what `kinds` says, and who was asked."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)
        self.asked: list[str] = []
        self.loads: dict[str, int] = {}
        self.closed = 0
        self.waits = asyncio.Event()

    async def ask(self, engine: Engine, path: str, body: bytes, request_id: str, *, stream: bool) -> Any:
        kind = self.kinds.pop(0)
        self.asked.append(engine.engine_id)
        if kind == "dead":
            raise EngineBroke("ConnectionRefusedError")
        if kind == "silent":
            self.waits.set()
            await asyncio.Event().wait()
        status = STATUSES.get(kind, 200)

        async def read() -> tuple[bytes, None]:
            if kind == "cut":
                raise EngineBroke("disconnected")
            return b'{"input_tokens":3}', None

        def close() -> None:
            self.closed += 1

        refused = kind in ("erring", "refusing")
        return SimpleNamespace(status=status, erred=kind == "erring", refused=refused, read=read, close=close)


def gateway_of(engines: Engines) -> Gateway:
    follower: Any = SimpleNamespace(view=View(SNAPSHOT), workers=1)
    spool: Any = SimpleNamespace(depth=0)
    return Gateway(GatewaySettings(), b"secret", follower, spool, engines)  # type: ignore[arg-type]


def request() -> Exchange:
    asked = exchange((b"x-api-key", b"el-key"), line=Connected())
    asked.received(b'{"model":"p","messages":[{"role":"user","content":"hi"}]}')
    asked.received_all()
    return asked


async def count(gateway: Gateway, asked: Exchange) -> None:
    await counting.count_tokens(gateway, asked, DIALECTS["/v1/messages"])


@pytest.mark.parametrize("first", ["dead", "cut", "refusing", "erring", "silent"])
async def test_a_second_engine_is_asked_and_the_first_one_suspected(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if first == "silent":
        monkeypatch.setattr(counting, "SECONDS", 0.01)
    engines = Engines(first, "good")
    gateway, asked = gateway_of(engines), request()
    await count(gateway, asked)
    assert asked.status == 200
    assert sorted(engines.asked) == ["a", "b"]
    assert [gateway.suspicion.suspected(name) for name in engines.asked] == [True, False]
    assert engines.closed == (1 if first in ("dead", "silent") else 2)


@pytest.mark.parametrize(
    ("kind", "error", "suspected"),
    [("dead", EngineFailed, True), ("silent", EngineFailed, False), ("erring", EngineErred, False)],
)
async def test_where_no_engine_counts_the_caller_is_told(
    kind: str, error: type[GatewayError], suspected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that is too much for every engine has none of them suspected."""
    if kind == "silent":
        monkeypatch.setattr(counting, "SECONDS", 0.01)
    engines = Engines(kind, kind)
    gateway = gateway_of(engines)
    with pytest.raises(error):
        await count(gateway, request())
    assert sorted(engines.asked) == ["a", "b"]
    assert [gateway.suspicion.suspected(name) for name in "ab"] == [suspected] * 2
    assert gateway.places.requests == 0


async def test_what_is_wrong_with_a_prompt_is_asked_of_one_engine() -> None:
    engines = Engines("wrong")
    asked = request()
    await count(gateway_of(engines), asked)
    assert asked.status == 400
    assert len(engines.asked) == 1


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ([Exchange.lost], ClientLeft),
        ([Exchange.end_now], Stopping),
        ([Exchange.end_now, Exchange.lost], ClientLeft),
    ],
)
async def test_when_its_caller_leaves_or_the_process_ends_it_gives_its_place_back(
    ends: list[Callable[[Exchange], None]], error: type[Exception]
) -> None:
    engines = Engines("silent")
    gateway, asked = gateway_of(engines), request()
    counted = asyncio.create_task(count(gateway, asked))
    await engines.waits.wait()
    assert gateway.places.requests == 1
    for end in ends:
        end(asked)
    with pytest.raises(error):
        await counted
    assert gateway.places.requests == 0
    assert len(engines.asked) == 1
    assert not gateway.suspicion.suspected(engines.asked[0])
