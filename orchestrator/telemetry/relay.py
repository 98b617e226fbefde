"""The servers' own series, relayed under their own names."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.registry import Collector

from orchestrator.telemetry.exposition import TOTAL, Family, parts
from orchestrator.telemetry.ledger import Account
from orchestrator.telemetry.look import Look, Values
from orchestrator.telemetry.slots import SLOT_PREFIX

Labels = tuple[tuple[str, str], ...]


class RelayCollector(Collector):
    """llama-server's `llamacpp:*` families with the label `model`; several servers share one family.

    Its series per slot stand under our own names: see slots.py.

    ```
    llamacpp:tokens_predicted_total{model="smollm2-135m"} 1820.0
    llamacpp:requests_processing{model="smollm2-135m"} 1.0
    ```
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Families in the order in which the servers give them."""
        families: dict[str, Metric] = {}
        for is_counter, found in ((True, self._look.counters), (False, self._look.gauges)):
            for (name, labels), value in _by_series(found).items():
                said = self._look.families.get(name, Family())
                family = families.setdefault(name, _family(name, said, is_counter=is_counter))
                # Servers of two builds may not agree; a series stands on the page once.
                if (family.type == "counter") is is_counter:
                    family.add_sample(name, dict(labels), value)
        yield from families.values()


def _by_series(found: Mapping[Account, Values]) -> dict[tuple[str, Labels], float]:
    """Values by name and labels, those of a model added up."""
    sums: dict[tuple[str, Labels], float] = {}
    for account, values in found.items():
        for series, value in values.items():
            if series.startswith(SLOT_PREFIX):
                continue
            name, labels = parts(series)
            key = name, tuple({**labels, "model": account.model}.items())
            sums[key] = sums.get(key, 0.0) + value
    return sums


def _family(name: str, said: Family, *, is_counter: bool) -> Metric:
    if is_counter:
        return Metric(name.removesuffix(TOTAL), said.text, "counter")
    # A counter that is none, and parts of families that we know nothing of, are just numbers.
    return Metric(name, said.text, "gauge" if said.kind in ("counter", "gauge") else "unknown")
