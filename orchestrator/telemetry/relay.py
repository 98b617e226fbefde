"""The servers' own series, relayed under their own names."""

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector

from orchestrator.telemetry.snapshot import ServerSnapshot

_PREFIX = "llamacpp:"
# Shown under our own names, with the speculation type beside them: see slots.py.
_RENAMED_PREFIX = "llamacpp:slot_"


class RelayCollector(Collector):
    """llama-server's `llamacpp:*` families with the label `model`; several servers share one family.

    ```
    llamacpp:tokens_predicted_total{model="smollm2-135m"} 1820.0
    ```
    """

    def __init__(self, servers: Sequence[ServerSnapshot]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        """Families by name, in the order in which the first server gives them."""
        merged: dict[str, Metric] = {}
        for server in self._servers:
            for family in server.families:
                if not family.name.startswith(_PREFIX) or family.name.startswith(_RENAMED_PREFIX):
                    continue
                ours = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    ours.add_sample(sample.name, sample.labels | {"model": server.model}, sample.value)
        yield from merged.values()
