"""Dashboards as data, and the JSON that Grafana 12.3 reads (schema version 42, the classic one).

Only what these dashboards use. The field names are those of Grafana's kinds: dashboard_kind.cue and the panel
plugins' panelcfg.cue, and PromQueryProperties of its Prometheus data source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]

SCHEMA_VERSION = 42
COLUMNS = 24
# docker/grafana/provisioning/datasources/prometheus.yml
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
TAG = "slipstream"


@dataclass(frozen=True)
class Query:
    """One PromQL query; `legend` is Grafana's `{{label}}` template, `min_step` the shortest step that makes sense."""

    expr: str
    legend: str = ""
    is_instant: bool = False
    format: Literal["time_series", "table", "heatmap"] = "time_series"
    min_step: str = ""
    has_exemplars: bool = False

    def json(self, ref_id: str) -> Json:
        """The target of a panel."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "exemplar": self.has_exemplars,
            "expr": self.expr,
            "format": self.format,
            "instant": self.is_instant,
            "interval": self.min_step,
            "legendFormat": self.legend or "__auto",
            "range": not self.is_instant,
            "refId": ref_id,
        }


@dataclass(frozen=True)
class Panel:
    """One panel; `views.py` makes them. `defaults` is `fieldConfig.defaults` of Grafana's panel."""

    type: str
    title: str
    description: str
    queries: tuple[Query, ...]
    width: int
    height: int
    defaults: Json
    options: Json
    overrides: tuple[Json, ...] = ()
    transformations: tuple[Json, ...] = ()

    def targets(self) -> Iterator[tuple[str, Query]]:
        """The queries with their reference ids: A, B, C."""
        for number, query in enumerate(self.queries):
            yield chr(ord("A") + number), query

    def json(self, panel_id: int, x: int, y: int) -> Json:
        """The panel at a place of the grid."""
        return {
            "id": panel_id,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": self.defaults, "overrides": list(self.overrides)},
            "options": self.options,
            "targets": [query.json(ref_id) for ref_id, query in self.targets()],
            "transformations": list(self.transformations),
        }


@dataclass(frozen=True)
class Row:
    """A titled stretch of panels, laid out from left to right, wrapped at 24 columns."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """Values of a label, several at a time or all of them.

    `has_open_all`: "All" is `.*`, so that what appears later is in. Otherwise "All" is the list of the values, so that
    what another variable leaves out stays out.
    """

    name: str
    label: str
    selector: str
    has_open_all: bool = True

    def json(self) -> Json:
        """A query variable, asked again with every change of the time range, a refresh included."""
        query = f"label_values({self.selector}, {self.name})"
        return {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "current": {"text": ["All"], "value": ["$__all"]},
            "includeAll": True,
            "multi": True,
            "options": [],
            "refresh": 2,
            "regex": "",
            # Natural: digits as numbers, the rest as letters.
            "sort": 7,
            **({"allValue": ".*"} if self.has_open_all else {}),
        }


@dataclass(frozen=True)
class Annotation:
    """Marks on every graph. With `is_time_in_value` the value of a series is the moment, in milliseconds."""

    name: str
    expr: str
    title: str
    tags: str
    color: str
    is_time_in_value: bool = True

    def json(self) -> Json:
        """One annotation query. Grafana reads the expression from `target`, and the rest from beside it."""
        return {
            "name": self.name,
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": self.color,
            "target": {"expr": self.expr, "refId": "Anno", "interval": ""},
            "titleFormat": self.title,
            "textFormat": "",
            "tagKeys": self.tags,
            "useValueForTime": self.is_time_in_value,
        }


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; `uid` names its file and its address."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    time_from: str = "now-1h"
    refresh: str = "10s"

    def panels(self) -> Iterator[Panel]:
        """Every panel, from top to bottom."""
        for row in self.rows:
            yield from row.panels

    def json(self) -> Json:
        """What Grafana provisions."""
        return {
            "uid": f"slipstream-{self.uid}",
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "links": [_SIBLINGS],
            "liveNow": False,
            "preload": False,
            "refresh": self.refresh,
            "time": {"from": self.time_from, "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "annotations": {"list": [annotation.json() for annotation in self.annotations]},
            "templating": {"list": [variable.json() for variable in self.variables]},
            "panels": list(self._grid()),
        }

    def _grid(self) -> Iterator[Json]:
        panel_id, y = 1, 0
        for row in self.rows:
            yield {
                "id": panel_id,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
                "panels": [],
            }
            panel_id, y, x, line = panel_id + 1, y + 1, 0, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, line = 0, y + line, 0
                yield panel.json(panel_id, x, y)
                panel_id, x, line = panel_id + 1, x + panel.width, max(line, panel.height)
            y += line


_SIBLINGS: Json = {
    "type": "dashboards",
    "title": "Slipstream",
    "tags": [TAG],
    "asDropdown": False,
    "icon": "external link",
    "includeVars": False,
    "keepTime": True,
    "targetBlank": False,
    "tooltip": "",
    "url": "",
}
