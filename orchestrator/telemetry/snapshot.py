"""What collectors are built from."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import Code, SlipstreamError


@dataclass(frozen=True)
class ServerSnapshot:
    """One server at scrape time.

    `families` is its own exposition; empty when it could not be asked. `warm_up` is what it had counted when it
    became ready: that work was ours, and no user's.
    """

    model: str
    state: str
    is_ready: bool
    spec_type: str
    starts: int
    start_seconds: float | None
    families: tuple[Metric, ...] = ()
    warm_up: tuple[Metric, ...] = ()


def parse_child_metrics(text: str) -> tuple[Metric, ...]:
    """Families of a llama-server's exposition; SlipstreamError upstream_failed when it is none."""
    try:
        return tuple(text_string_to_metric_families(text))
    except ValueError as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"llama-server's metrics are not readable: {e}") from e


def gauges(snapshot: ServerSnapshot, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and values of one series name."""
    return _samples(snapshot.families, name)


def counters(snapshot: ServerSnapshot, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and values of one series name, the warm-up taken off."""
    before = {frozenset(labels.items()): value for labels, value in _samples(snapshot.warm_up, name)}
    for labels, value in _samples(snapshot.families, name):
        yield labels, value - before.get(frozenset(labels.items()), 0.0)


def _samples(families: tuple[Metric, ...], name: str) -> Iterator[tuple[dict[str, str], float]]:
    for family in families:
        for sample in family.samples:
            if sample.name == name:
                yield sample.labels, sample.value
