"""What a change of flags has brought."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.ledger import FLAG_SUMS
from orchestrator.telemetry.look import Look

_PERIODS = ("current", "previous")
_TEXTS = {
    "predicted_tokens": "Tokens generated",
    "predicted_seconds": "Time spent generating, seconds,",
    "draft_tokens": "Tokens drafted",
    "accepted_tokens": "Drafted tokens accepted",
    "verification_steps": "Steps in which the target verified a draft",
}


class FlagsCollector(Collector):
    """Totals over the slots since a server first ran with the flags of now, and with those before.

    Gauges: they begin anew with each change of flags, and are there to be divided by each other.

    ```
    slipstream_flags_draft_tokens{flags="current",model="smollm2-135m"} 412.0
    slipstream_flags_draft_tokens{flags="previous",model="smollm2-135m"} 2310.0
    ```
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """One family a total."""
        for name in FLAG_SUMS.values():
            family = GaugeMetricFamily(
                f"slipstream_flags_{name}",
                f"{_TEXTS[name]} with the flags of now, and with those before.",
                labels=("model", "flags"),
            )
            for model, periods in self._look.flags.items():
                for flags, sums in zip(_PERIODS, periods, strict=False):
                    if name in sums:
                        family.add_metric([model, flags], sums[name])
            yield family
