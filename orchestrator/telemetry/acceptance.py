"""How many drafted tokens each verification step has accepted."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from orchestrator.telemetry.exposition import parts
from orchestrator.telemetry.look import Look, Values
from orchestrator.telemetry.slots import POSITIONS

_STEPS = "llamacpp:slot_verification_steps_total"
# The same for every model, so that they can be added; longer drafts than 8 come from n-grams.
BOUNDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)


class AcceptedLengthCollector(Collector):
    """Made from the counters by position: so many steps accepted more than k tokens as had the token at k accepted.

    ```
    slipstream_accepted_length_tokens_bucket{le="0.0",model="smollm2-135m",spec_type="ngram-simple"} 12.0
    slipstream_accepted_length_tokens_bucket{le="+Inf",model="smollm2-135m",spec_type="ngram-simple"} 103.0
    slipstream_accepted_length_tokens_count{model="smollm2-135m",spec_type="ngram-simple"} 103.0
    slipstream_accepted_length_tokens_sum{model="smollm2-135m",spec_type="ngram-simple"} 398.0
    ```
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """One histogram by model and speculation type; none where nothing can be drafted."""
        family = HistogramMetricFamily(
            "slipstream_accepted_length_tokens",
            "Drafted tokens that each verification step accepted.",
            labels=("model", "spec_type"),
        )
        for account, values in self._look.counters.items():
            if account.spec_type == "none":
                continue
            steps, by_position = _steps(values)
            buckets = [*_buckets(steps, by_position), ("+Inf", steps)]
            family.add_metric([account.model, account.spec_type], buckets, sum(by_position.values()))
        yield family


def _steps(values: Values) -> tuple[float, dict[str, float]]:
    """Verification steps over all slots, and by position how many of them accepted the token there."""
    steps, by_position = 0.0, dict[str, float]()
    for series, value in values.items():
        if series.startswith(_STEPS):
            steps += value
        elif series.startswith(POSITIONS):
            position = parts(series)[1].get("position", "")
            by_position[position] = by_position.get(position, 0.0) + value
    return steps, by_position


def _buckets(steps: float, by_position: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    at_most = (max(0.0, steps - by_position.get(str(bound), 0.0)) for bound in BOUNDS)
    # Never less than the bucket before, and never more than all, whatever a server may say.
    counts = (min(count, steps) for count in accumulate(at_most, max))
    yield from zip(map(floatToGoString, map(float, BOUNDS)), counts, strict=True)
