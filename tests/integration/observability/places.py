"""Where queries stand, and expectations that panels of several dashboards share."""

from collections.abc import Iterable
from typing import NamedTuple

from tests.integration.observability.figures import Expect, Take, by_model, labelled
from tests.integration.observability.known import Known

# By title of a panel and reference of its query.
Table = dict[tuple[str, str], Expect]
LOCAL = "local"


class Key(NamedTuple):
    """One query of a dashboard."""

    dashboard: str
    panel: str
    ref_id: str


def one(value: float) -> Expect:
    """A single value without labels."""
    return lambda _: {labelled(): value}


def each(models: Iterable[str], value: float) -> Expect:
    """The same value of each model."""
    return lambda _: {labelled(model=model): value for model in models}


def rate_by_model(name: str) -> Expect:
    """Per second, of each model."""
    return lambda known: by_model(per_window(known, name), spec_type=False)(known)


def per_window(known: Known, name: str) -> Take:
    return lambda figures: float(getattr(figures, name)) / known.window_seconds
