"""Pieces of PromQL. A quotient has no value where its denominator is 0."""

# What Grafana derives from the step and the scrape interval, never shorter than four scrapes.
RATE = "$__rate_interval"
# The whole range on the screen.
RANGE = "$__range"

MODEL = 'model=~"$model"'
SLOT = 'model=~"$model", slot=~"$slot", spec_type=~"$spec_type"'
HOST = 'host=~"$host"'


def total(metric: str, by: str = "", select: str = MODEL, window: str = RANGE) -> str:
    """How much a counter grew in a window, summed."""
    return f"{_sum(by)} (increase({metric}{{{select}}}[{window}]))"


def growth(metric: str, by: str, select: str, window: str) -> str:
    """`total` of a counter whose first count is its first sample: what is not there before the window counts whole.

    An hour of outage of Prometheus is bridged; after a longer one, counters that went on meanwhile count whole once.
    """
    series = f"{metric}{{{select}}}"
    born = f"({series} unless last_over_time({series}[1h] offset {window}))"
    return f"{_sum(by)} ({born} or increase({series}[{window}]))"


def rate(metric: str, by: str = "", select: str = MODEL, window: str = RATE) -> str:
    """How fast a counter grows, per second, summed."""
    return f"{_sum(by)} (rate({metric}{{{select}}}[{window}]))"


def quotient(numerator: str, denominator: str, least: str = "0") -> str:
    """No series where the denominator is 0, or no more than `least`."""
    return f"{numerator} / ({denominator} > {least})"


def quantile(q: float, histogram: str, by: str = "", select: str = MODEL, window: str = RATE) -> str:
    """A quantile of a histogram; no series in a window without an observation, where Prometheus would say NaN."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', labels, select, window)}) >= 0"


def mean(histogram: str, by: str = "", select: str = MODEL, window: str = RATE) -> str:
    """The mean of a histogram's observations."""
    return quotient(
        rate(f"{histogram}_sum", by, select, window),
        rate(f"{histogram}_count", by, select, window),
    )


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
