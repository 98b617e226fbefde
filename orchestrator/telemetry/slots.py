"""Speculation per slot, from the per-slot series of the patched server (patches 0002 and 0004)."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.snapshot import ServerSnapshot, counters, gauges

Family = CounterMetricFamily | GaugeMetricFamily
Read = Callable[[ServerSnapshot, str], Iterator[tuple[dict[str, str], float]]]
_LABELS = ("model", "slot", "spec_type")
# Own name, name at the server, help. vLLM's schema, with the slot as one more label.
_COUNTERS = (
    ("slipstream_slot_predicted_tokens", "llamacpp:slot_predicted_tokens_total", "Tokens generated."),
    ("slipstream_slot_predicted_seconds", "llamacpp:slot_predicted_seconds_total", "Time spent generating, seconds."),
    ("slipstream_slot_draft_tokens", "llamacpp:slot_draft_tokens_total", "Tokens drafted."),
    ("slipstream_slot_accepted_tokens", "llamacpp:slot_accepted_tokens_total", "Drafted tokens that were accepted."),
    (
        "slipstream_slot_relaxed_tokens",
        "llamacpp:slot_relaxed_tokens_total",
        "Accepted tokens that were not the target's own choice.",
    ),
    (
        "slipstream_slot_verification_steps",
        "llamacpp:slot_verification_steps_total",
        "Steps in which the target verified a draft.",
    ),
)


class SlotCollector(Collector):
    """Counters per slot; a server without drafts has no acceptance, a server that is down has no series.

    ```
    slipstream_slot_draft_tokens_total{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 412.0
    slipstream_slot_accepted_tokens_total{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 398.0
    slipstream_slot_accepted_tokens_per_position_total{model="…",position="0",slot="0",spec_type="…"} 61.0
    slipstream_slot_busy{model="smollm2-135m",slot="0",spec_type="ngram-simple"} 1.0
    ```
    """

    def __init__(self, servers: Sequence[ServerSnapshot]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        """One family a series name of the server, over all servers."""
        for name, upstream, text in _COUNTERS:
            yield self._fill(CounterMetricFamily(name, text, labels=_LABELS), counters, upstream)
        positions = CounterMetricFamily(
            "slipstream_slot_accepted_tokens_per_position",
            "Accepted tokens by position in the draft, from 0.",
            labels=(*_LABELS, "position"),
        )
        yield self._fill(positions, counters, "llamacpp:slot_accepted_tokens_per_position_total", "position")
        busy = GaugeMetricFamily("slipstream_slot_busy", "Whether the slot is at work.", labels=_LABELS)
        yield self._fill(busy, gauges, "llamacpp:slot_busy")

    def _fill(self, family: Family, read: Read, upstream: str, *more_labels: str) -> Family:
        for server in self._servers:
            for labels, value in read(server, upstream):
                more = [labels.get(label, "") for label in more_labels]
                family.add_metric([server.model, labels.get("slot", ""), server.spec_type, *more], value)
        return family
