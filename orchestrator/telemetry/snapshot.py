"""What collectors are built from."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import Code, SlipstreamError


@dataclass(frozen=True)
class ServerSnapshot:
    """One server at scrape time. `families` is its own exposition; empty when it could not be asked."""

    model: str
    state: str
    is_ready: bool
    spec_type: str
    starts: int
    start_seconds: float | None
    families: tuple[Metric, ...] = ()


def parse_child_metrics(text: str) -> tuple[Metric, ...]:
    """Families of a llama-server's exposition; SlipstreamError upstream_failed when it is none."""
    try:
        return tuple(text_string_to_metric_families(text))
    except ValueError as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"llama-server's metrics are not readable: {e}") from e


def samples(snapshot: ServerSnapshot, name: str) -> Iterable[tuple[dict[str, str], float]]:
    """Labels and values of one series name in a snapshot."""
    for family in snapshot.families:
        for sample in family.samples:
            if sample.name == name:
                yield sample.labels, sample.value
