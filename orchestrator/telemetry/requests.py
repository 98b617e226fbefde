"""Requests of the gateway: how many, how they ended, and how long each part took."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.gaps import TOKEN_BUCKETS, GapHistogram, Gaps
from orchestrator.telemetry.histograms import ModelHistogram

OUTCOMES = ("ok", "client_error", "server_error", "cancelled")
# vLLM's, with finer steps below a second and none beyond the longest usual wait for a server.
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 600.0),
)
_REQUEST_BUCKETS = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0),
)


class Measured(NamedTuple):
    """What was measured of one request, in seconds; None where it has none. docs/metrics.md defines each.

    `exemplar` leads to its trace; None when the request has none that is kept.
    """

    seconds: float | None = None
    first_token_seconds: float | None = None
    per_token_seconds: float | None = None
    gaps: Gaps | None = None
    exemplar: Mapping[str, str] | None = None


class Requests(Collector):
    """Requests by model, and by outcome: `ok`, `client_error`, `server_error`, `cancelled`.

    ```
    slipstream_requests_total{model="smollm2-135m",outcome="ok"} 12.0
    slipstream_requests_running{model="smollm2-135m"} 1.0
    slipstream_request_seconds_bucket{le="0.5",model="smollm2-135m"} 9.0
    slipstream_request_seconds_count{model="smollm2-135m"} 12.0
    slipstream_request_seconds_sum{model="smollm2-135m"} 8.31
    slipstream_time_to_first_token_seconds_bucket{le="0.04",model="smollm2-135m"} 11.0
    slipstream_time_per_output_token_seconds_bucket{le="0.01",model="smollm2-135m"} 10.0
    slipstream_inter_token_latency_seconds_bucket{le="0.01",model="smollm2-135m"} 702.0
    ```
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._running: Counter[str] = Counter()
        self._seconds = ModelHistogram(
            "slipstream_request_seconds", "From the request read to the last byte of its answer.", _REQUEST_BUCKETS
        )
        self._first_token = ModelHistogram(
            "slipstream_time_to_first_token_seconds", "From the request read to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self._per_token = ModelHistogram(
            "slipstream_time_per_output_token_seconds",
            "Time of an answer's tokens after the first, by their number.",
            TOKEN_BUCKETS,
        )
        self._gaps = GapHistogram(
            "slipstream_inter_token_latency_seconds", "Gaps between the pieces of streamed answers."
        )
        self._histograms = (self._seconds, self._first_token, self._per_token, self._gaps)

    def began(self, model: str) -> None:
        """A request for a model has been read. `model` is a name of the catalogue, so that the label stays bounded."""
        self._expect(model)
        self._running[model] += 1

    def ended(self, model: str, outcome: str, measured: Measured) -> None:
        """That request is over."""
        self._running[model] -= 1
        self.count(model, outcome)
        for histogram, value in (
            (self._seconds, measured.seconds),
            (self._first_token, measured.first_token_seconds),
            (self._per_token, measured.per_token_seconds),
        ):
            if value is not None:
                histogram.observe(model, value, measured.exemplar)
        if measured.gaps is not None:
            self._gaps.add(model, measured.gaps, time.time(), measured.exemplar)

    def count(self, model: str, outcome: str) -> None:
        """Count one finished request."""
        self._counts[model, outcome] = self._counts.get((model, outcome), 0) + 1

    def keep_only(self, models: Collection[str]) -> None:
        """Show these models from 0 on, and forget those that are gone: one that still answers stays until it has."""
        for model in models:
            self._expect(model)
        kept = {*models, *(model for model, running in self._running.items() if running)}
        self._counts = {key: n for key, n in self._counts.items() if key[0] in kept}
        for model in self._running.keys() - kept:
            del self._running[model]
        for histogram in self._histograms:
            histogram.keep_only(kept)

    def _expect(self, model: str) -> None:
        """`rate()` does not see the first observation of a series that begins with it."""
        if model not in self._running:
            self._running[model] = 0
            for outcome in OUTCOMES:
                self._counts.setdefault((model, outcome), 0)
            for histogram in self._histograms:
                histogram.expect(model)

    def collect(self) -> Iterator[Metric]:
        """A counter, a gauge and four histograms. Another thread may ask than the one that counts."""
        family = CounterMetricFamily(
            "slipstream_requests", "Finished requests of the gateway.", labels=("model", "outcome")
        )
        for (model, outcome), value in list(self._counts.items()):
            family.add_metric([model, outcome], value)
        yield family
        running = GaugeMetricFamily(
            "slipstream_requests_running", "Requests that wait or are being answered now.", labels=("model",)
        )
        for model, count in list(self._running.items()):
            running.add_metric([model], count)
        yield running
        for histogram in self._histograms:
            yield from histogram.collect()
