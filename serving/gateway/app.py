"""The gateway as an application: which path is what, and errors in the caller's dialect.

It is called with each `Exchange`, for what a framework, and ASGI itself, would do here costs more than the turn.
`open` opens what the process needs, to be closed in reverse.
"""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from ingest.config import LogSettings
from ingest.contracts.fleet import Role
from ingest.contracts.ids import new_id
from ingest.contracts.process_logs import described
from ingest.spool import Spool
from serving.config import GatewaySettings
from serving.gateway import counting, openapi
from serving.gateway.dialects import DIALECTS, answering
from serving.gateway.dialects.base import Dialect
from serving.gateway.engine_client import EngineClient
from serving.gateway.errors import GatewayError, MethodNotAllowed, NotFound
from serving.gateway.exchange import ClientLeft, Exchange
from serving.gateway.feedback import take_feedback
from serving.gateway.gateway import Gateway
from serving.gateway.snapshot import Follower
from serving.gateway.turns import take_turn
from serving.gateway.workers import CannotStart

logger = logging.getLogger(__name__)
_GET = frozenset({"/health", "/v1/models", openapi.PATH})
_POST = frozenset({*DIALECTS, counting.PATH, "/v1/feedback", "/v1/feedback/batch"})
_MODEL = "/v1/models/"
_DOCUMENT = msgspec.json.encode(openapi.document())


class App:
    """One gateway process's application."""

    def __init__(
        self,
        *,
        settings: GatewaySettings,
        control: str,
        control_token: str,
        hash_secret: bytes,
        spool: Path,
        log: LogSettings,
        snapshot: Path,
        workers: int = 1,
    ) -> None:
        self._settings = settings
        self._control = control
        self._control_token = control_token
        self._secret = hash_secret
        self._spool = spool
        self._log = log
        self._snapshot = snapshot
        self._workers = workers
        self._take_turn = take_turn
        self.gateway: Gateway

    async def open(self, stack: AsyncExitStack) -> None:
        """Opens everything, to be closed with `stack`. Raises `ControlUnreachable`, `SpoolError`, `CannotStart`."""
        settings, log = self._settings, self._log
        client, gateway = EngineClient, Gateway
        if settings.otlp_endpoint is not None:
            try:
                from serving.gateway import tracing  # OpenTelemetry is not even loaded without an endpoint
            except ModuleNotFoundError as error:
                raise CannotStart(
                    f"{error.name} is not installed here: otlp_endpoint needs everloop[tracing]"
                ) from None
            stack.callback(tracing.start(settings.otlp_endpoint).shutdown)
            client, gateway = tracing.TracedEngineClient, tracing.TracedGateway
            self._take_turn = tracing.take_traced_turn
        follower = await stack.enter_async_context(
            Follower(self._control, self._control_token, self._snapshot, settings.poll_seconds, self._workers)
        )
        spool = Spool.open(
            self._spool,
            segment_bytes=log.segment_bytes,
            segment_seconds=log.segment_seconds,
            max_bytes=log.max_bytes,
            ack=log.ack,
        )
        stack.callback(spool.close)
        engines = client(settings.engine_silence_seconds, settings.max_answer_bytes)
        await stack.enter_async_context(engines)
        self.gateway = gateway(settings, self._secret, follower, spool, engines)
        stack.callback(self.gateway.redactions.close)

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.path
        dialect = answering(path, of_anthropic=exchange.has(b"anthropic-version"))
        exchange.id_header = dialect.request_id_header
        try:
            await self._route(exchange, path, exchange.method, dialect)
        except GatewayError as error:
            await self._fail(exchange, dialect, error)
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 a bug must reach the log and the caller's dialect, not a broken line
            logger.error("a bug: %s", described(error))
            await self._fail(exchange, dialect, GatewayError("The gateway failed: its log says where."))
        finally:
            known = path if path in _POST or path in _GET else "other"
            self.gateway.metrics.answered(known, exchange.status)

    async def _route(self, exchange: Exchange, path: str, method: str, dialect: Dialect) -> None:
        if method == "POST" and path in DIALECTS:
            await self._take_turn(self.gateway, exchange, dialect)
        elif method == "POST" and path == counting.PATH:
            await counting.count_tokens(self.gateway, exchange, dialect)
        elif method == "POST" and path in _POST:
            await take_feedback(self.gateway, exchange, batch=path.endswith("/batch"))
        elif method in ("GET", "HEAD") and (path in _GET or path.startswith(_MODEL)):
            await self._tell(exchange, dialect, path)
        elif path in _POST or path in _GET or path.startswith(_MODEL):
            allowed = "POST" if path in _POST else "GET, HEAD"
            raise MethodNotAllowed(f"This path does not take this method, but: {allowed}.", allowed)
        else:
            raise NotFound("There is nothing at this path: /openapi.json lists what there is.")

    async def _tell(self, exchange: Exchange, dialect: Dialect, path: str) -> None:
        exchange.request_id = new_id("req")
        if path == "/health":
            await exchange.answer(200, b'{"status":"ok"}')
        elif path == openapi.PATH:
            await exchange.answer(200, _DOCUMENT)
        else:
            await self._models(exchange, dialect, path.removeprefix("/v1/models").removeprefix("/"))

    async def _models(self, exchange: Exchange, dialect: Dialect, name: str) -> None:
        self.gateway.authenticate(exchange, *Role)
        policies = self.gateway.follower.view.policies
        if name and name not in policies:
            raise NotFound("No policy has this model name: `GET /v1/models` lists those that exist.", param="model")
        body = dialect.model(name) if name else dialect.model_list(list(policies))
        await exchange.answer(200, msgspec.json.encode(body))

    async def _fail(self, exchange: Exchange, dialect: Dialect, error: GatewayError) -> None:
        exchange.request_id = exchange.request_id or new_id("req")
        if error.status >= 500:
            logger.warning("%s: %s", exchange.request_id, error.code)
        await exchange.fail(error, dialect.error_body(error), dialect.error_event(error))
