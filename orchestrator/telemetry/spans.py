"""Spans of requests by OpenTelemetry's SDK. Imported only when traces are switched on: see tracing.py."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from orchestrator.errors import SlipstreamError

# What is left when the process ends is sent if the receiver takes it within this time.
_CLOSE_SECONDS = 2.0
_EXPORTERS: dict[str, type[SpanExporter]] = {"otlp": OTLPSpanExporter, "console": ConsoleSpanExporter}
Attribute = str | int | float | bool
Attributes = Mapping[str, Attribute | None]


class Tracing:
    """Makes the trace of each request. A thread of its own sends spans; when it cannot follow, spans are dropped."""

    def __init__(self, exporters: tuple[str, ...], version: str) -> None:
        named = {SERVICE_NAME: "slipstream", SERVICE_VERSION: version}
        resource = Resource.create(named).merge(OTELResourceDetector().detect())
        # Sampler and limits are those of the environment.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for name in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(_EXPORTERS[name]()))
        self._tracer = self._provider.get_tracer("slipstream", version)

    def request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> "Trace":
        """The trace of a request; with the client's `traceparent` it goes on from there."""
        context = propagate.extract(headers)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes=_known(attributes))
        return Trace(self._tracer, span)

    async def close(self) -> None:
        """Send what is left. A receiver that does not answer holds nobody up for longer than a short while."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        # Not in the loop's pool, whose threads the end of the process waits for.
        threading.Thread(target=shut_down, name="end of traces", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await done.wait()


class Trace:
    """The span of one request and what is under it."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        context = span.get_span_context()
        self.trace_id = trace.format_trace_id(context.trace_id)
        self.is_kept = context.trace_flags.sampled

    def note(self, attributes: Attributes) -> None:
        """Attributes of the request itself; those that are None are left out."""
        self._span.set_attributes(_known(attributes))

    @contextmanager
    def span(self, name: str, *, is_client: bool = False) -> Iterator["Part"]:
        """A part of the request; it fails with the error that leaves it."""
        kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
        context = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context, kind)
        try:
            yield Part(self._tracer, span)
        except BaseException as e:
            _fail(span, str(e.code) if isinstance(e, SlipstreamError) else type(e).__name__)
            raise
        finally:
            span.end()

    def end(self, status: int, error: str) -> None:
        """The request is over. An error of the client's own is none of this span's (HTTP conventions)."""
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if error:
            self._span.set_attribute("error.type", error)
            if status >= 500 or not status:
                self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Part:
    """One span under that of a request."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def note(self, attributes: Attributes) -> None:
        """Attributes; those that are None are left out."""
        self._span.set_attributes(_known(attributes))

    def fail(self, error: str) -> None:
        """It has failed; `error` is a code, a status or the name of a class."""
        _fail(self._span, error)

    def headers(self) -> dict[str, str]:
        """What tells another server that its work belongs to this span."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self._span))
        return carrier

    def past(self, name: str, began: float, ended: float, attributes: Attributes) -> None:
        """A span under this one for something that is over; times of `time.monotonic`."""
        ahead_ns = time.time_ns() - int(time.monotonic() * 1e9)
        context = trace.set_span_in_context(self._span)
        start = int(began * 1e9) + ahead_ns
        span = self._tracer.start_span(name, context, attributes=_known(attributes), start_time=start)
        span.end(int(ended * 1e9) + ahead_ns)


def _fail(span: Span, error: str) -> None:
    # Never a message, which could hold a prompt.
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def _known(attributes: Attributes) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}
