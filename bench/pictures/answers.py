"""What Prometheus answers to the queries of a dashboard as Grafana reads it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dashboards import FOLDER, substitute

Json = dict[str, Any]

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Series:
    """One line of a panel, or with a single point one value; points are (Unix time, value)."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


@dataclass(frozen=True)
class Span:
    """The range that a dashboard shows: Unix seconds, and the least seconds between two points of a line."""

    start: float
    end: float
    step_seconds: float
    rate_seconds: float

    def filled(self, expr: str) -> str:
        """The expression with the variables of this range."""
        seconds = math.ceil(self.end - self.start)
        rate, step = (f"{round(1000 * length)}ms" for length in (self.rate_seconds, self.step_seconds))
        return substitute(expr, {"__range": f"{seconds}s", "__rate_interval": rate, "__interval": step})


@dataclass(frozen=True)
class Answered:
    """A panel as it stands in the JSON, and the series of each of its queries."""

    panel: Json
    series: Mapping[str, tuple[Series, ...]]

    @property
    def all(self) -> list[Series]:
        """Of every query."""
        return [series for found in self.series.values() for series in found]


def dashboards() -> list[Path]:
    """The files that Grafana is given."""
    return sorted(FOLDER.glob("*.json"))


def answered(dashboard: Json, url: str, span: Span) -> list[Answered]:
    """Every panel with its answers; httpx.HTTPStatusError when Prometheus refuses a query."""
    with httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
        return [
            Answered(panel, {target["refId"]: _ask(client, target, span) for target in panel.get("targets", ())})
            for panel in dashboard["panels"]
        ]


def _ask(client: httpx.Client, target: Json, span: Span) -> tuple[Series, ...]:
    expr = span.filled(target["expr"])
    if target["instant"]:
        found = _get(client, "query", query=expr, time=span.end)
        rows = [(one["metric"], [one["value"]]) for one in found]
    else:
        found = _get(client, "query_range", query=expr, start=span.start, end=span.end, step=span.step_seconds)
        rows = [(one["metric"], one["values"]) for one in found]
    return tuple(
        Series(_legend(target["legendFormat"], labels), labels, tuple((float(at), float(v)) for at, v in points))
        for labels, points in rows
    )


def _get(client: httpx.Client, path: str, **parameters: Any) -> list[Json]:
    data = client.post(f"/api/v1/{path}", data=parameters).raise_for_status().json()["data"]
    if data["resultType"] == "scalar":
        return [{"metric": {}, "value": data["result"]}]
    return list(data["result"])


def _legend(template: str, labels: Mapping[str, str]) -> str:
    if template == "__auto":
        return ", ".join(value for name, value in labels.items() if name != "__name__")
    return _LABEL.sub(lambda found: labels.get(found[1], ""), template)


def read(path: Path) -> Json:
    """A dashboard's JSON."""
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found
