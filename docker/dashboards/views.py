"""The kinds of panel. Every one shows what is not there as words, and never as 0."""

from collections.abc import Mapping

from dashboards.model import Json, Panel, Query

NO_TRAFFIC = "no traffic"
TOKENS_PER_SECOND = "suffix: tok/s"
PER_SECOND = "suffix: /s"
RATIO = "percentunit"
SECONDS = "s"
BYTES = "bytes"
BYTES_PER_SECOND = "Bps"
COUNT = "short"

_NEUTRAL: Json = {"mode": "absolute", "steps": [{"color": "text", "value": None}]}


def stat(
    title: str,
    description: str,
    expr: str,
    unit: str,
    no_value: str = NO_TRAFFIC,
    decimals: int | None = None,
    steps: tuple[tuple[float | None, str], ...] = ((None, "text"),),
    texts: Mapping[float, str] | None = None,
    width: int = 4,
) -> Panel:
    """One figure, asked for once. `steps` are its colours from a value up, `texts` words in place of values."""
    defaults = _defaults(unit, no_value, decimals, texts)
    defaults["thresholds"] = {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}
    options: Json = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value",
        "wideLayout": True,
    }
    return Panel("stat", title, description, (Query(expr, is_instant=True),), width, 4, defaults, options)


def lines(
    title: str,
    description: str,
    queries: tuple[Query, ...],
    unit: str,
    no_value: str = NO_TRAFFIC,
    width: int = 12,
    is_stacked: bool = False,
    is_bars: bool = False,
    top: float | None = None,
) -> Panel:
    """Values over time, from 0 up. A gap in the data is a gap in the line; a lone value shows as a point."""
    defaults = _defaults(unit, no_value) | {"min": 0, "color": {"mode": "palette-classic"}}
    if top is not None:
        defaults["max"] = top
    defaults["custom"] = {
        "drawStyle": "bars" if is_bars else "line",
        "fillOpacity": 60 if is_bars else 20 if is_stacked else 5,
        "lineWidth": 1,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
    }
    options: Json = {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, description, queries, width, 8, defaults, options)


def gauges(
    title: str,
    description: str,
    query: Query,
    unit: str,
    no_value: str = NO_TRAFFIC,
    top: float | None = None,
    order: tuple[str, ...] = (),
) -> Panel:
    """One bar a series, asked for once; `order` are the labels that order them, digits in them as numbers."""
    defaults = _defaults(unit, no_value) | {"min": 0, "color": {"mode": "palette-classic"}, "thresholds": _NEUTRAL}
    if top is not None:
        defaults["max"] = top
    options: Json = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "valueMode": "color",
    }
    transformations = _ordered(order) if order else ()
    return Panel("bargauge", title, description, (query,), 8, 8, defaults, options, transformations=transformations)


def _ordered(labels: tuple[str, ...]) -> tuple[Json, ...]:
    # Prometheus' own order has position 10 before 2. Grafana orders the fields of one frame: order.ts.
    by = [{"type": "label", "name": label, "desc": False} for label in labels]
    return (
        {"id": "joinByField", "options": {"byField": "Time", "mode": "outer"}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {},
                "renameByName": {},
                "orderByMode": "auto",
                "orderBy": by,
            },
        },
    )


def heatmap(title: str, description: str, query: Query, unit: str) -> Panel:
    """Buckets of a histogram over time; the colour is how many fell into a bucket."""
    options: Json = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": COUNT},
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "unit": unit},
    }
    return Panel("heatmap", title, description, (query,), 8, 8, {"noValue": NO_TRAFFIC}, options)


def timeline(
    title: str, description: str, query: Query, states: Mapping[float, tuple[str, str]], no_value: str, width: int = 24
) -> Panel:
    """States over time: `states` gives each value its word and colour."""
    defaults = _defaults(COUNT, no_value, texts={value: text for value, (text, _) in states.items()})
    for value, (_, color) in states.items():
        defaults["mappings"][0]["options"][f"{value:g}"]["color"] = color
    # Grafana draws a gap as a state as soon as null is mapped to a text: hasMappedNull. A gap is to be a gap.
    del defaults["mappings"][1:]
    # Colours come from the states. Thresholds, where they are the panel's default, would put their own values in place.
    defaults["color"] = {"mode": "palette-classic"}
    defaults["custom"] = {"fillOpacity": 70, "lineWidth": 0, "spanNulls": False}
    options: Json = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel("state-timeline", title, description, (query,), width, 8, defaults, options)


def table(
    title: str,
    description: str,
    columns: Mapping[str, Query],
    units: Mapping[str, str],
    names: Mapping[str, str],
    no_value: str = NO_TRAFFIC,
    width: int = 24,
    numbers: tuple[str, ...] = (),
) -> Panel:
    """One row for each set of labels, one column a query.

    `columns` maps a column's title to its query; `names` maps the labels that stay to their titles, in their order,
    which is also that of the rows; `numbers` are those whose values are numbers.
    A query titled "" only brings labels: its value is left out.
    """
    # Grafana numbers the values as soon as there are two of them.
    names_of_values = [f"Value #{chr(ord('A') + number)}" for number in range(len(columns))]
    ids = dict(zip(names_of_values if len(columns) > 1 else ["Value"], columns, strict=True))
    order = {name: number for number, name in enumerate([*names, *ids])}
    left_out = ["Time", *(value for value, column in ids.items() if not column)]
    renamed = {**names, **{value: column for value, column in ids.items() if column}}
    transformations: tuple[Json, ...] = (
        {"id": "merge", "options": {}},
        *(_as_number(name) for name in numbers),
        # Each sorts by one field and keeps the order of those before.
        *({"id": "sortBy", "options": {"sort": [{"field": name, "desc": False}]}} for name in reversed([*names])),
        {
            "id": "organize",
            "options": {
                "excludeByName": {name: True for name in left_out},
                "indexByName": order,
                "renameByName": renamed,
            },
        },
    )
    overrides: tuple[Json, ...] = tuple(
        {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "unit", "value": unit}]}
        for column, unit in units.items()
    )
    defaults = _defaults(COUNT, no_value) | {"custom": {"align": "auto", "filterable": False}}
    return Panel(
        "table",
        title,
        description,
        tuple(columns.values()),
        width,
        8,
        defaults,
        {"showHeader": True, "cellHeight": "sm"},
        overrides,
        transformations,
    )


def _as_number(field: str) -> Json:
    # Labels are text, and sorted as text: slot 10 before 2.
    conversion = {"targetField": field, "destinationType": "number"}
    return {"id": "convertFieldType", "options": {"fields": {}, "conversions": [conversion]}}


def _defaults(unit: str, no_value: str, decimals: int | None = None, texts: Mapping[float, str] | None = None) -> Json:
    """Fields of every panel: the unit, and words where there is no value or where a division had none."""
    mappings: list[Json] = []
    if texts:
        options = {f"{value:g}": {"text": text, "index": index} for index, (value, text) in enumerate(texts.items())}
        mappings.append({"type": "value", "options": options})
    mappings.append({"type": "special", "options": {"match": "null+nan", "result": {"text": no_value}}})
    return {
        "unit": unit,
        "noValue": no_value,
        "mappings": mappings,
        **({"decimals": decimals} if decimals is not None else {}),
    }
