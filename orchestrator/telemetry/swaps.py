"""Loads of models, and requests that wait for them."""

from collections.abc import Collection, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.histograms import ModelHistogram

# From a lease at once to the longest usual wait (SLIPSTREAM_WAIT_TIMEOUT_SECONDS): loads last seconds to minutes.
_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Swaps:
    """What the scheduler tells as it happens."""

    def __init__(self) -> None:
        self.load_seconds = ModelHistogram(
            "slipstream_swap_seconds", "From the decision to load a model until it is ready, seconds.", _BUCKETS
        )
        self.wait_seconds = ModelHistogram(
            "slipstream_swap_wait_seconds", "How long a request waited for its server, seconds.", _BUCKETS
        )

    def keep_only(self, models: Collection[str]) -> None:
        """Show these models from 0 on, and forget those that are gone: their series end.

        Those too that were never loaded: a load may begin and end between two scrapes.
        """
        for histogram in (self.load_seconds, self.wait_seconds):
            for model in models:
                histogram.expect(model)
            histogram.keep_only(models)


class SwapCollector(Collector):
    """Swaps so far, and how many requests wait now, by model.

    ```
    slipstream_swap_seconds_bucket{le="2.5",model="smollm2-135m"} 3.0
    slipstream_swap_seconds_count{model="smollm2-135m"} 3.0
    slipstream_swap_seconds_sum{model="smollm2-135m"} 4.72
    slipstream_swap_wait_seconds_bucket{le="0.005",model="smollm2-135m"} 118.0
    slipstream_swap_queue_length{model="smollm2-135m"} 0.0
    ```
    """

    def __init__(self, swaps: Swaps, waiting: Mapping[str, int]) -> None:
        self._swaps = swaps
        self._waiting = dict(waiting)

    def collect(self) -> Iterator[Metric]:
        """Two histograms and a gauge."""
        yield from self._swaps.load_seconds.collect()
        yield from self._swaps.wait_seconds.collect()
        queue = GaugeMetricFamily(
            "slipstream_swap_queue_length", "Requests that wait for a server now.", labels=("model",)
        )
        for model, waiting in self._waiting.items():
            queue.add_metric([model], waiting)
        yield queue
