"""What the dashboards ask Prometheus, for tests that hold it to a real one."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from dashboards.files import DASHBOARDS

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# As Grafana does for a panel of an hour on a data source that scrapes every 5 s.
_DEFAULTS = {"__rate_interval": "1m", "__interval": "15s", "__range": "3600s", "__range_s": "3600"}


class Asked(NamedTuple):
    """One query; `panel` is the title of its panel, or `variable NAME` or `annotation NAME`."""

    dashboard: str
    panel: str
    ref_id: str
    expr: str
    is_instant: bool


def panels() -> list[Asked]:
    """Every query of every panel, with Grafana's variables in it; `substitute` fills them in."""
    return [
        Asked(dashboard.uid, panel.title, ref_id, query.expr, query.is_instant)
        for dashboard in DASHBOARDS
        for panel in dashboard.panels()
        for ref_id, query in panel.targets()
    ]


def queries() -> list[Asked]:
    """Every query of every panel, and those of variables (as the selector they list) and annotations."""
    return [*panels(), *_others()]


def substitute(expr: str, values: dict[str, str] | None = None) -> str:
    """The expression with each `$name` replaced: from `values`, else all of a variable, a minute of rate, an hour.

    `values` maps names without the dollar to what stands in the text: `{"model": "a|b", "__rate_interval": "30s"}`.
    """
    known = _DEFAULTS | (values or {})
    return _VARIABLE.sub(lambda found: known.get(found[1] or found[2], ".*"), expr)


def _others() -> Iterator[Asked]:
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            yield Asked(dashboard.uid, f"variable {variable.name}", "A", variable.selector, True)
        for annotation in dashboard.annotations:
            yield Asked(dashboard.uid, f"annotation {annotation.name}", "Anno", annotation.expr, False)
