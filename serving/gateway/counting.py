"""`POST /v1/messages/count_tokens`: how long a prompt is, as an engine renders it. Nothing is sampled or recorded."""

from ingest.contracts.fleet import Role
from ingest.contracts.ids import new_id
from serving.gateway.dialects.base import Dialect
from serving.gateway.engine_client import EngineBroke
from serving.gateway.errors import EngineErred, EngineFailed
from serving.gateway.exchange import Exchange
from serving.gateway.gateway import Gateway

PATH = "/v1/messages/count_tokens"


async def count_tokens(gateway: Gateway, exchange: Exchange, dialect: Dialect) -> None:
    """Asks an engine that serves the policy. Raises `GatewayError`."""
    exchange.request_id = new_id("req")
    key = gateway.authenticate(exchange, Role.INFERENCE, Role.EVALUATION, Role.ADMIN)
    with gateway.limits.hold(key), gateway.places.hold() as place:
        settings = gateway.settings
        body = await exchange.read_body(settings.max_body_bytes, settings.body_seconds, place.reserve)
        ask = dialect.read(body, admin=Role.ADMIN in key.roles, max_samples=1, media_domains=settings.media_domains)
        policy = gateway.policy(ask.model)
        engine = await gateway.choose_engine(key, policy.name, "serve", exchange.request_id, None)
        prompt = dialect.engine_body(
            ask,
            served_model=policy.name,
            turn_id=exchange.request_id,
            longest=0,
            media=engine.media,
            salt=exchange.request_id,
            pinned={},
        )
        try:
            answer = await gateway.engines.ask(engine, PATH, prompt, exchange.request_id, stream=False)
        except EngineBroke:
            raise EngineFailed("No engine gave an answer: try again in a moment.") from None
        try:
            if answer.erred:
                raise EngineErred
            if answer.refused:
                raise EngineFailed("No engine gave an answer: try again in a moment.")
            counted, _ = await answer.read()
        except EngineBroke:
            raise EngineFailed("The engine went away in mid-answer: try again.") from None
        finally:
            answer.close()
    if answer.status != 200:
        counted = dialect.engine_error(answer.status, counted)
    await exchange.answer(answer.status, counted)
