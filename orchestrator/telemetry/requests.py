"""Requests of the gateway."""

from collections.abc import Collection, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Requests(Collector):
    """Requests of the gateway by model and outcome (`ok`, `client_error`, `server_error`, `cancelled`).

    ```
    slipstream_requests_total{model="smollm2-135m",outcome="ok"} 12.0
    ```
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def count(self, model: str, outcome: str) -> None:
        """Count one finished request. `model` is a name of the catalogue, so that the label stays bounded."""
        self._counts[model, outcome] = self._counts.get((model, outcome), 0) + 1

    def keep_only(self, models: Collection[str]) -> None:
        """Forget models that are gone: their series end."""
        self._counts = {key: n for key, n in self._counts.items() if key[0] in models}

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CounterMetricFamily(
            "slipstream_requests", "Finished requests of the gateway.", labels=("model", "outcome")
        )
        for (model, outcome), value in self._counts.items():
            family.add_metric([model, outcome], value)
        yield family
