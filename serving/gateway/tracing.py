"""OpenTelemetry traces: one for each turn, joined to the engine's own spans by `traceparent`.

Imported only where `otlp_endpoint` is set (`app.App.open`): otherwise no line of this runs, and OpenTelemetry is not
even loaded. The traced parts are the plain ones with a span around what takes time:

    turn (server)        from the request to the end of its answer; policy, version, arm, finish, tokens
    ├─ engine (client)   until the engine's first byte; one for each engine that was asked
    │  └─ llm_request    vLLM's own, in the engine's process
    └─ commit            the spool's group commit, and a redaction before it

A trace is the gateway's own: a caller's `traceparent` becomes a link, for a caller chooses neither ids nor sampling
here. No span holds a text, a user, or an exception's message. Spans are exported by a thread; a collector that is away
costs spans, never a turn.
"""

import logging
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ingest.contracts.fleet import Engine, Policy
from ingest.contracts.turn import Turn
from serving.gateway.dialects.base import Dialect
from serving.gateway.engine_client import EngineAnswer, EngineClient
from serving.gateway.errors import GatewayError
from serving.gateway.exchange import Exchange
from serving.gateway.gateway import Gateway
from serving.gateway.turns import take_turn

_EXPORT_SECONDS = 5.0
_context = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("everloop.gateway")
_PLAIN: dict = {"record_exception": False, "set_status_on_exception": False}


def start(endpoint: str) -> TracerProvider:
    """Traces of this process go to `endpoint`, an OTLP/HTTP URL, from now on. To be shut down at the end."""
    provider = TracerProvider(resource=Resource.create({"service.name": "everloop-gateway"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)))
    trace.set_tracer_provider(provider)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_name_trace)
    return provider


def _name_trace(record: logging.LogRecord) -> bool:
    found = trace.get_current_span().get_span_context()
    if found.is_valid:
        record.trace_id = trace.format_trace_id(found.trace_id)
    return True


async def take_traced_turn(gateway: Gateway, exchange: Exchange, dialect: Dialect) -> None:
    """`take_turn` in a trace of its own."""
    caller = _context.extract({"traceparent": exchange.header(b"traceparent") or ""})
    link = trace.get_current_span(caller).get_span_context()
    with _tracer.start_as_current_span(
        "turn",
        Context(),
        SpanKind.SERVER,
        {"url.path": dialect.path, "everloop.dialect": dialect.name},
        [Link(link)] if link.is_valid else [],
        **_PLAIN,
    ) as span:
        try:
            await take_turn(gateway, exchange, dialect)
        except GatewayError as error:
            span.set_attributes({"error.type": error.code, "http.response.status_code": error.status})
            if error.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            raise
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        else:
            span.set_attribute("http.response.status_code", exchange.status)
        finally:
            span.set_attribute("everloop.turn_id", exchange.request_id)


class TracedEngineClient(EngineClient):
    """The engines' client, whose requests carry their span."""

    async def ask(self, engine: Engine, path: str, body: bytes, request_id: str, *, stream: bool) -> EngineAnswer:
        """As without traces."""
        attributes = {"everloop.engine_id": engine.engine_id, "everloop.version": engine.version}
        with _tracer.start_as_current_span("engine", None, SpanKind.CLIENT, attributes, **_PLAIN) as span:
            try:
                answer = await super().ask(engine, path, body, request_id, stream=stream)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise
            span.set_attribute("http.response.status_code", answer.status)
            return answer

    def headers(self, engine: Engine, request_id: str) -> dict[str, str]:
        """With the engine span's `traceparent`."""
        found = super().headers(engine, request_id)
        _context.inject(found)
        return found


class TracedGateway(Gateway):
    """The gateway, whose turns tell their span what they were."""

    async def commit(self, policy: Policy, turns: Sequence[Turn]) -> bool:
        """As without traces."""
        first = turns[0]
        versions = [span.version for turn in turns for span in turn.weight_versions]
        trace.get_current_span().set_attributes(
            {
                "everloop.policy": policy.name,
                "everloop.version": versions[-1] if versions else "",
                "everloop.arm": first.arm,
                "everloop.samples": len(turns),
                "everloop.finish": str(first.finish),
                "gen_ai.usage.input_tokens": len(first.prompt_ids) // 4,
                "gen_ai.usage.output_tokens": sum(len(turn.output_ids) // 4 for turn in turns),
            }
        )
        with _tracer.start_as_current_span("commit", **_PLAIN):
            return await super().commit(policy, turns)
