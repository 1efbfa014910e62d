"""An OpenTelemetry collector for tests: takes OTLP/HTTP, and keeps the spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Span:
    """One span; ids in hex, `parent` empty for a root, `links` the trace ids of its links."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, object]
    links: tuple[str, ...]


@dataclass
class Collector:
    """What came in, and where it comes in."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def of_turn(self, turn_id: str) -> list[Span]:
        """All spans of one turn's trace, once its own has come."""
        traces = {span.trace for span in self.spans if span.attributes.get("everloop.turn_id") == turn_id}
        return [span for span in self.spans if span.trace in traces]

    def take(self, body: bytes) -> None:
        """One export."""
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {pair.key: _value(pair.value) for pair in resource.resource.attributes}
            self.spans += [
                Span(
                    str(about.get("service.name")),
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    {pair.key: _value(pair.value) for pair in span.attributes},
                    tuple(link.trace_id.hex() for link in span.links),
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
