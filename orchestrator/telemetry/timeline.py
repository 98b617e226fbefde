"""When something last happened to a model."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class TimelineCollector(Collector):
    """The last event of each sort (`loaded`, `ended`, `flags`, `failed`) by model: dashboards mark where it moves.

    ```
    slipstream_event_timestamp_seconds{event="flags",model="smollm2-135m"} 1.79000000025e+09
    ```
    """

    def __init__(self, last: Mapping[tuple[str, str], float]) -> None:
        """`last`: Unix seconds by model and event."""
        self._last = dict(last)

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = GaugeMetricFamily(
            "slipstream_event_timestamp_seconds",
            "When the last such event of the model was, Unix seconds.",
            labels=("model", "event"),
        )
        for (model, event), at in self._last.items():
            family.add_metric([model, event], at)
        yield family
