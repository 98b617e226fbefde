"""What drafting was measured to bring."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_LABELS = ("model", "spec_type")


@dataclass(frozen=True)
class BenchSample:
    """The measurement of a model, of how its server runs now; `at` in Unix seconds."""

    model: str
    spec_type: str
    at: float
    speedup_ratio: float
    break_even_tokens: float | None


class BenchCollector(Collector):
    """The measurement that is kept for each model; none of one whose flags are others now.

    ```
    slipstream_bench_speedup_ratio{model="smollm2-135m",spec_type="ngram-simple"} 1.31
    slipstream_bench_break_even_tokens{model="smollm2-135m",spec_type="ngram-simple"} 2.31
    slipstream_bench_timestamp_seconds{model="smollm2-135m",spec_type="ngram-simple"} 1.79000000025e+09
    ```
    """

    def __init__(self, samples: Iterable[BenchSample]) -> None:
        self._samples = tuple(samples)

    def collect(self) -> Iterator[Metric]:
        """Three gauges; no break-even where nothing was drafted."""
        speedup = GaugeMetricFamily(
            "slipstream_bench_speedup_ratio",
            "Tokens per second with drafts by those without, as measured.",
            labels=_LABELS,
        )
        break_even = GaugeMetricFamily(
            "slipstream_bench_break_even_tokens",
            "Mean acceptance length at which drafting neither costs nor brings, as measured.",
            labels=_LABELS,
        )
        at = GaugeMetricFamily(
            "slipstream_bench_timestamp_seconds", "When that was measured, Unix seconds.", labels=_LABELS
        )
        for sample in self._samples:
            labels = [sample.model, sample.spec_type]
            speedup.add_metric(labels, sample.speedup_ratio)
            at.add_metric(labels, sample.at)
            if sample.break_even_tokens is not None:
                break_even.add_metric(labels, sample.break_even_tokens)
        yield from (speedup, break_even, at)
