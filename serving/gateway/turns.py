"""A turn through the gateway. `take_turn` reads like the list in the design (§4):

1. authenticate, limit, bound the body; errors take the shape of the caller's dialect (`app.py`);
2. the dialect names policy and session, repairs what the engine would refuse, lets known fields through;
3. choose the arm, the version, the engine;
4. forward, streaming bytes through unparsed;
5. hold back the terminal event until the turn is committed to the spool;
6. a client that left: the engine's request is aborted, and what was generated is recorded;
7. an engine that fails before its first byte: once more on another; after it: the dialect's error event.

Invariant: whoever was sent a terminal event has its turn on the spool (`capture = "required"`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from ingest.contracts.fleet import Engine, Key, Role
from ingest.contracts.ids import new_turn_id
from serving.gateway.dialects.base import Dialect, Reply, bounded_stack
from serving.gateway.engine_client import EngineAnswer, EngineBroke
from serving.gateway.errors import (
    CaptureFailed,
    EngineErred,
    EngineFailed,
    EngineLost,
    GatewayError,
    TooLarge,
    Unavailable,
    VersionUnavailable,
)
from serving.gateway.exchange import ClientLeft, Exchange
from serving.gateway.gateway import Gateway
from serving.gateway.places import Place
from serving.gateway.progress import Progress, begin
from serving.gateway.records import Ending, complete, own, turns_of, versions_of
from serving.gateway.stream import EventStream

log = logging.getLogger(__name__)


async def take_turn(gateway: Gateway, exchange: Exchange, dialect: Dialect) -> None:
    """Answers one request. Raises `GatewayError` for what the caller is to be told, and `ClientLeft`."""
    exchange.request_id = turn_id = new_turn_id(dialect.name)
    key = gateway.authenticate(exchange, Role.INFERENCE, Role.EVALUATION, Role.ADMIN)  # 1
    with gateway.limits.hold(key), gateway.places.hold() as place:  # 1
        turn = await read(gateway, exchange, dialect, key, turn_id, place)  # 1, 2, 3
        with exchange.watched(turn.caller_left, turn.end_now):  # 6
            answer = await asked(gateway, turn)  # 3, 7
            ending = await relay(gateway, turn, answer, exchange)  # 4
            await commit(gateway, turn, ending)  # 5
            await finish(turn, exchange)


async def read(
    gateway: Gateway, exchange: Exchange, dialect: Dialect, key: Key, turn_id: str, place: Place
) -> Progress:
    """Steps 1 and 2: the body, bounded; what the dialect reads in it; room to record the answer."""
    settings = gateway.settings
    body = await exchange.read_body(settings.max_body_bytes, settings.body_seconds, place.reserve)
    ask = dialect.read(
        body, admin=Role.ADMIN in key.roles, max_samples=settings.max_samples, media_domains=settings.media_domains
    )
    policy = gateway.policy(ask.model)
    gateway.check_room(policy, ask)
    return begin(gateway, exchange, dialect, key, turn_id, ask, policy)


async def asked(gateway: Gateway, turn: Progress) -> EngineAnswer | None:
    """Steps 3 and 7: an engine's answer from its first byte on; asks a second engine where the first one fails.

    None where the caller left and the engine ended without an answer. Raises `EngineErred`, `EngineFailed`,
    `ClientLeft`; where an engine may have generated something, the turn is recorded then, too.
    """
    tried: list[str] = []
    erred: list[str] = []
    """Of those, the ones that a request may be too much for: suspected only where another one then takes it."""
    silent: Engine | None = None
    while len(tried) < 2 and not (tried and turn.overdue):
        try:
            async with asyncio.timeout_at(turn.deadline) as turn.timeout:
                engine = await gateway.choose_engine(
                    turn.caller.key, turn.policy.name, turn.role, turn.affinity, turn.version, tried
                )
        except TimeoutError:
            if not tried and not turn.left:
                raise Unavailable("No engine was ready in time: try again in a moment.") from None
            break
        except GatewayError:
            if not tried:
                raise
            break
        if turn.left:
            break
        if tried:
            gateway.metrics.retried(turn.policy.name)
        turn.engine = engine
        answer = await ask(gateway, turn)
        gateway.metrics.dropped(turn.dialect.name, turn.dropped())
        if erred and answer is not None and answer.status < 400 and not answer.refused:
            gateway.suspicion.outdone(erred[0], engine.engine_id)
        if turn.left or (answer is not None and not answer.refused):
            return answer
        if answer is None or answer.status < 400:
            silent = engine
        if answer is not None:
            answer.close()
        log.warning("engine %s failed before its first byte: turn %s", engine.engine_id, turn.caller.turn_id)
        tried.append(engine.engine_id)
        if answer is not None and answer.erred:
            erred.append(engine.engine_id)
        else:
            gateway.suspicion.failed(engine.engine_id)
    if silent is not None:
        with suppress(EngineLost):  # that would say it in mid-answer
            await commit(gateway, turn, Ending(engine=silent, lost=True, finished_at=time.time()))
    if turn.left:
        raise ClientLeft
    if len(erred) == len(tried):
        raise EngineErred
    raise EngineFailed("No engine gave an answer: try again in a moment.")


async def ask(gateway: Gateway, turn: Progress) -> EngineAnswer | None:
    """Sends the request to `turn.engine`; None where the engine broke off, or the turn has taken too long."""
    body = turn.engine_body()
    try:
        async with asyncio.timeout_at(turn.deadline) as turn.timeout:
            return await gateway.engines.ask(
                turn.engine, turn.dialect.path, body, turn.request_id, stream=turn.ask.stream
            )
    except (EngineBroke, TimeoutError):
        return None


async def relay(gateway: Gateway, turn: Progress, answer: EngineAnswer | None, exchange: Exchange) -> Ending:
    """Step 4: reads the answer to its end, whatever the caller does, and passes on all but what ends it; closes it."""
    ending = Ending(engine=turn.engine)
    if answer is not None:
        ending.status = turn.status = answer.status
        try:
            async with asyncio.timeout_at(turn.deadline) as turn.timeout:
                await (relay_stream if answer.is_stream else relay_body)(turn, answer, exchange, ending)
        except EngineBroke:
            ending.lost = not turn.left
        except TimeoutError:
            turn.abort()
            turn.left = turn.left or exchange.sending
            ending.lost = not turn.left
        except TooLarge as error:
            turn.abort()
            ending.too_large = None if turn.left else error
        finally:
            answer.close()
    ending.finished_at = time.time()
    (gateway.suspicion.failed if ending.lost else gateway.suspicion.answered)(turn.engine.engine_id)
    return ending


async def relay_stream(turn: Progress, answer: EngineAnswer, exchange: Exchange, ending: Ending) -> None:
    """An event stream: each chunk goes out as it comes; the terminal event waits in `turn.tail`."""
    events = EventStream(turn.dialect.terminal)
    shown = 0
    try:
        chunk = answer.first
        while chunk:
            if passed := events.feed(chunk):
                if not exchange.started:
                    exchange.start(answer.status, answer.content_type, turn.headers(turn.engine.version))
                await exchange.send(turn.renamed(passed))
                if not turn.left:
                    shown += len(passed)
            chunk = await answer.chunk()
        ending.lost = not events.ended and not turn.left
    finally:
        turn.streams = True
        turn.tail = turn.renamed(events.held)
        ending.record = events.record
        forwarded = events.forwarded
        seen = ending.replies = replies_of(turn.dialect.stream_replies, forwarded)
        if shown < len(forwarded):
            seen = replies_of(turn.dialect.stream_replies, forwarded[:shown])
        ending.shown = [index for index, reply in seen.items() if reply.finish]


async def relay_body(turn: Progress, answer: EngineAnswer, exchange: Exchange, ending: Ending) -> None:
    """A JSON body: all of it waits in `turn.tail`, for nothing tells a caller more than its first byte."""
    body, ending.record = await answer.read()
    turn.content_type = answer.content_type
    if answer.status == 200:
        turn.tail = turn.renamed(body)
        ending.replies = replies_of(turn.dialect.replies, body)
    else:
        turn.tail = turn.dialect.engine_error(answer.status, body)


def replies_of(parse: Callable[[bytes], dict[int, Reply]], body: bytes) -> Mapping[int, Reply]:
    """What `parse` reads; nothing where the engine sent what is not of this format, or is nested too deeply."""
    try:
        with bounded_stack():
            return parse(body)
    except (msgspec.MsgspecError, RecursionError):
        return {}


async def commit(gateway: Gateway, turn: Progress, ending: Ending) -> None:
    """Step 5: the turn is on the spool when this returns.

    Raises `EngineLost`, `TooLarge`, `CaptureFailed` or `VersionUnavailable` for an answer that must not end well.
    """
    ending.record = own(ending.record, turn.caller)
    if ending.record is None and not ending.lost and ending.status < 400:
        ending.record = own(await gateway.engines.record(turn.engine, turn.request_id), turn.caller)
    if ending.record is None and ending.status >= 400:
        return  # refused for its form: nothing was sampled
    ending.left = turn.left
    turns = turns_of(turn.caller, ending)
    versions = versions_of(turns)
    turn.served_version = versions[-1] if versions else ""
    if await gateway.commit(turn.policy, turns):
        gateway.metrics.captured(turns, turn.served_version or turn.engine.version)
    if ending.left:
        return
    if ending.lost:
        raise EngineLost("The engine went away in mid-answer: try again.")
    if ending.too_large is not None:
        raise ending.too_large
    if turn.version is not None and versions not in ([], [turn.version]):
        raise VersionUnavailable("The engine changed its version in mid-answer: try again.")
    if not complete(turns):
        gateway.metrics.lost(turns, "no_record")
        if turn.policy.capture == "required":
            raise CaptureFailed("The engine gave no record of its answer, and it is not given: try again.")


async def finish(turn: Progress, exchange: Exchange) -> None:
    """The end of the answer, which tells the caller that all is well."""
    if turn.left:
        return
    if not turn.streams:
        await exchange.answer(turn.status, turn.tail, turn.headers(turn.served_version), turn.content_type)
        return
    if not exchange.started:
        exchange.start(turn.status, turn.content_type, turn.headers(turn.served_version))
    await exchange.end(turn.tail)
