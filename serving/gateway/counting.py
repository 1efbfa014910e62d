"""`POST /v1/messages/count_tokens`: how long a prompt is, as an engine renders it. Nothing is sampled or recorded."""

import asyncio
from contextlib import suppress

from ingest.contracts.fleet import Key, Policy, Role
from ingest.contracts.ids import new_id
from serving.gateway.dialects.base import Ask, Dialect
from serving.gateway.engine_client import OWN_SECONDS, EngineBroke
from serving.gateway.errors import EngineErred, EngineFailed, GatewayError, Stopping
from serving.gateway.exchange import ClientLeft, Exchange
from serving.gateway.gateway import Gateway

PATH = "/v1/messages/count_tokens"
SECONDS = 2 * OWN_SECONDS
"""How long an engine may take to count."""


async def count_tokens(gateway: Gateway, exchange: Exchange, dialect: Dialect) -> None:
    """Answers one request, unless its caller leaves or the process ends. Raises `GatewayError`, `ClientLeft`."""
    exchange.request_id = new_id("req")
    key = gateway.authenticate(exchange, Role.INFERENCE, Role.EVALUATION, Role.ADMIN)
    with gateway.limits.hold(key), gateway.places.hold() as place:
        settings = gateway.settings
        body = await exchange.read_body(settings.max_body_bytes, settings.body_seconds, place.reserve)
        ask = dialect.read(body, admin=Role.ADMIN in key.roles, max_samples=1, media_domains=settings.media_domains)
        policy = gateway.policy(ask.model)
        try:
            async with asyncio.timeout(None) as wait:

                def stop() -> None:
                    with suppress(RuntimeError):  # it stops already
                        wait.reschedule(0.0)

                with exchange.watched(stop, stop):
                    status, counted = await asked(gateway, key, dialect, ask, policy, exchange.request_id)
        except TimeoutError:
            if exchange.disconnected:
                raise ClientLeft from None
            raise Stopping from None
    if status != 200:
        counted = dialect.engine_error(status, counted)
    await exchange.answer(status, counted)


async def asked(
    gateway: Gateway, key: Key, dialect: Dialect, ask: Ask, policy: Policy, request_id: str
) -> tuple[int, bytes]:
    """An engine's status and answer; asks a second engine where the first one fails. Raises `GatewayError`."""
    tried: list[str] = []
    unsure: list[str] = []
    """Of those, the ones that a request may be too much for, as in `turns.asked`: they erred, or took too long."""
    erred = 0
    while len(tried) < 2:
        try:
            engine = await gateway.choose_engine(key, policy.name, "serve", request_id, None, tried)
        except GatewayError:
            if not tried:
                raise
            break
        if tried:
            gateway.metrics.retried(policy.name)
        tried.append(engine.engine_id)
        prompt = dialect.engine_body(
            ask, served_model=policy.name, turn_id=request_id, longest=0, media=engine.media, salt=request_id, pinned={}
        )
        try:
            async with asyncio.timeout(SECONDS):
                answer = await gateway.engines.ask(engine, PATH, prompt, request_id, stream=False)
                try:
                    counted, _ = await answer.read()
                finally:
                    answer.close()
        except EngineBroke:
            gateway.suspicion.failed(engine.engine_id)
        except TimeoutError:
            unsure.append(engine.engine_id)
        else:
            if not answer.refused:
                if unsure:
                    gateway.suspicion.outdone(unsure[0], engine.engine_id)
                return answer.status, counted
            if answer.erred:
                erred += 1
                unsure.append(engine.engine_id)
            else:
                gateway.suspicion.failed(engine.engine_id)
    if erred == len(tried):
        raise EngineErred
    raise EngineFailed("No engine gave an answer: try again in a moment.")
