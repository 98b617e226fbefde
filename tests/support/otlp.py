"""A receiver of traces: OTLP over HTTP, read by the protocol's own definitions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.serving import serving


@dataclass(frozen=True)
class Span:
    """What a test looks at of one span; ids in hexadecimal."""

    name: str
    kind: str
    trace_id: str
    id: str
    parent: str
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """`hangs` set: it takes a request and never answers."""

    url: str = ""
    hangs: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    raw: list[bytes] = field(default_factory=list)

    def resources(self) -> list[dict[str, Any]]:
        """Attributes of what has sent."""
        return [_attributes(one.resource.attributes) for one in self._resource_spans()]

    def spans(self) -> list[Span]:
        """All spans so far, by start."""
        found = [
            Span(
                span.name,
                span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                span.status.code == span.status.STATUS_CODE_ERROR,
                _attributes(span.attributes),
            )
            for resource in self._resource_spans()
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start)

    def _resource_spans(self) -> Iterator[Any]:
        for raw in list(self.raw):
            yield from ExportTraceServiceRequest.FromString(raw).resource_spans


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.asked.set()
            if receiver.hangs.is_set():
                receiver.ended.wait()
                return
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            receiver.raw.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        try:
            yield receiver
        finally:
            receiver.ended.set()
