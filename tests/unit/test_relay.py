"""How a stream ends: what the caller was shown of it, and by whose fault its time ran out."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.contracts.fleet import Engine
from serving.fleet.health import Suspicion
from serving.gateway.dialects import DIALECTS
from serving.gateway.progress import LEFT_SECONDS, Progress
from serving.gateway.turns import relay
from tests.wires import Connected, Wire, exchange

ENGINE = Engine(engine_id="e", policy="p", url="", token="")
TEXT = b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]}\n\n'
STOP = b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Streaming:
    """An engine's answer, chunk by chunk; one that is not whole goes on for ever without another."""

    status, is_stream, content_type = 200, True, b"text/event-stream"

    def __init__(self, *chunks: bytes) -> None:
        self.first, *self.rest = chunks
        self.ended = chunks[-1] == DONE
        self.closed = 0

    async def chunk(self) -> bytes:
        if self.rest:
            return self.rest.pop(0)
        return b"" if self.ended else await asyncio.Event().wait()  # type: ignore[return-value]

    def close(self) -> None:
        self.closed += 1


def turn_of(seconds: float) -> Any:
    aborted: list[bool] = []
    return SimpleNamespace(
        engine=ENGINE,
        dialect=DIALECTS["/v1/chat/completions"],
        deadline=asyncio.get_running_loop().time() + seconds,
        left=False,
        aborted=aborted,
        abort=lambda: aborted.append(True),
        renamed=lambda data: data,
        headers=lambda version: [],
    )


@pytest.mark.parametrize("reads", [False, True])
async def test_a_turn_that_takes_too_long_is_lost_by_whom_it_waits_for(reads: bool) -> None:
    line = Connected()
    if not reads:
        line.flow.pause_writing()
    turn, suspicion = turn_of(0.05), Suspicion(lambda: 0.0)
    gateway: Any = SimpleNamespace(suspicion=suspicion)
    answer: Any = Streaming(STOP % 0)
    ending = await relay(gateway, turn, answer, exchange(line=line))
    assert answer.closed == 1
    assert turn.aborted == [True]
    assert (ending.lost, turn.left) == (reads, not reads)
    assert ending.shown == ([0] if reads else [])
    assert suspicion.suspected("e") is reads


@pytest.mark.parametrize(("leaves_at", "shown"), [(1, []), (2, []), (3, [1]), (4, [0, 1]), (9, [0, 1])])
async def test_what_a_caller_was_shown_ends_before_it_left(leaves_at: int, shown: list[int]) -> None:
    """The engine had finished both samples when it heard of it. `leaves_at`: while this chunk is sent."""
    turn = turn_of(60)

    def heard(_: bytes) -> None:
        turn.left = turn.left or len(wire.writes) == leaves_at

    wire = Wire(heard)
    gateway: Any = SimpleNamespace(suspicion=Suspicion(lambda: 0.0))
    answer: Any = Streaming(TEXT % 0, STOP % 1, STOP % 0, TEXT % 0, DONE)
    ending = await relay(gateway, turn, answer, exchange(line=Connected(wire)))
    assert sorted(ending.shown) == shown
    assert set(ending.replies) == {0, 1}
    assert not ending.lost


@pytest.mark.parametrize(("ends", "most"), [(Progress.caller_left, LEFT_SECONDS), (Progress.end_now, 0.0)])
async def test_a_turn_without_a_reader_or_a_process_waits_no_longer(ends: Any, most: float) -> None:
    turn, now = Progress.__new__(Progress), asyncio.get_running_loop().time()
    turn.deadline, turn.timeout, turn._aborting = now + 3600, None, None
    ends(turn)  # while nobody waits
    assert turn.deadline <= asyncio.get_running_loop().time() + most
    turn.deadline = now + 3600
    with suppress(TimeoutError):
        async with asyncio.timeout_at(turn.deadline) as turn.timeout:
            ends(turn)
            assert turn.timeout.when() == turn.deadline <= asyncio.get_running_loop().time() + most
            await asyncio.sleep(0)
    ends(turn)  # when nobody waits any more
