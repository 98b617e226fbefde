"""Quantiles and means of histograms as a page of metrics has them, worked out without Prometheus."""

from collections.abc import Iterable
from itertools import pairwise

from tests.integration.observability.figures import Expect, Values, labelled, ratio, values
from tests.integration.observability.known import CATALOGUE, Known


def buckets(known: Known, name: str, models: Iterable[str]) -> list[tuple[float, float]]:
    """Upper bounds in order, and how many observations of the known traffic were at most so great."""
    pages = known.after.values
    bounds = {dict(labels)["le"] for series, labels in pages if series == f"{name}_bucket"}
    grown = {le: sum(known.grown(f"{name}_bucket", le=le, model=model) for model in models) for le in bounds}
    return sorted((float(le), count) for le, count in grown.items())


def quantile(q: float, found: list[tuple[float, float]]) -> float | None:
    """By straight lines between the bounds of the bucket that it falls into; None without an observation.

    What falls beyond the last bound is said to be at it.
    """
    total = found[-1][1] if found else 0.0
    if not total:
        return None
    wanted = q * total
    for (low, before), (high, count) in pairwise([(0.0, 0.0), *found]):
        if count >= wanted and count > before:
            return low if high == float("inf") else low + (high - low) * (wanted - before) / (count - before)
    raise AssertionError(f"no bucket holds {wanted} of {found}")


def quantiles(q: float, name: str) -> Expect:
    """Of all models together."""
    return lambda known: values([(labelled(), quantile(q, buckets(known, name, CATALOGUE)))])


def quantiles_by_model(q: float, name: str) -> Expect:
    """Of each model that has an observation."""

    def expect(known: Known) -> Values:
        return values((labelled(model=m), quantile(q, buckets(known, name, [m]))) for m in CATALOGUE)

    return expect


def means(name: str) -> Expect:
    """Of all models together."""
    return lambda known: values([(labelled(), _mean(known, name))])


def means_by_model(name: str) -> Expect:
    """Of each model that has an observation."""
    return lambda known: values((labelled(model=m), _mean(known, name, model=m)) for m in CATALOGUE)


def _mean(known: Known, name: str, **labels: str) -> float | None:
    return ratio(known.grown(f"{name}_sum", **labels), known.grown(f"{name}_count", **labels))
