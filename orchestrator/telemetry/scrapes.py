"""Looks at servers that brought nothing."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.look import Look


class ScrapeCollector(Collector):
    """How often a server that was ready did not tell its metrics.

    ```
    slipstream_server_scrape_failures_total{model="smollm2-135m"} 0.0
    ```
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CounterMetricFamily(
            "slipstream_server_scrape_failures",
            "Scrapes that a ready server did not answer in time, or not readably.",
            labels=("model",),
        )
        for model, count in self._look.failures.items():
            family.add_metric([model], count)
        yield family
