"""A dashboard drawn with matplotlib, panels where Grafana puts them."""

import re
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from itertools import groupby, pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox
from PIL import Image

from bench.pictures.answers import Answered, Json, Series, Span
from bench.pictures.units import written

_COLUMNS = 24
_WIDTH_INCHES = 15.0
_ROW_INCHES = 0.36
_DPI = 90
_COLOURS = 48
_INK, _FAINT, _EDGE = "#1f2933", "#6b7780", "#d5dbe0"
_MARKS = {
    **{"green": "#3a9a4b", "blue": "#3b76c4", "purple": "#8a56c2", "red": "#d13b3b", "orange": "#e08a1e"},
    "yellow": "#d9b310",
}
_MOST_LEGENDS, _MOST_BARS, _MOST_ROWS = 6, 10, 9
_WORDS = re.compile(r"(\d+)|(\D+)")


def draw(dashboard: Json, panels: list[Answered], marks: list[tuple[float, str]], span: Span, out: Path) -> None:
    """Write a PNG; `marks` are the times and colours of annotations."""
    rows = max(p.panel["gridPos"]["y"] + p.panel["gridPos"]["h"] for p in panels)
    height = (rows + 2) * _ROW_INCHES
    figure = pyplot.figure(figsize=(_WIDTH_INCHES, height), dpi=_DPI, facecolor="white")
    figure.text(0.008, 1 - 0.9 * _ROW_INCHES / height, dashboard["title"], fontsize=15, color=_INK, va="center")
    for answered in panels:
        _place(figure, answered, marks, span, rows + 2)
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    pyplot.close(figure)
    picture = Image.open(buffer).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    beside = out.with_name(f".{out.name}.new")
    picture.save(beside, format="png", optimize=True)
    beside.replace(out)


def _place(figure: Figure, answered: Answered, marks: list[tuple[float, str]], span: Span, rows: int) -> None:
    panel, at = answered.panel, answered.panel["gridPos"]
    left, width = at["x"] / _COLUMNS, at["w"] / _COLUMNS
    top, height = 1 - (at["y"] + 2) / rows, at["h"] / rows
    if panel["type"] == "row":
        figure.text(left + 0.008, top - 0.5 * height, panel["title"], fontsize=11, color=_FAINT, va="center")
        return
    title = top - 0.45 / rows
    figure.text(left + 0.008, title, panel["title"], fontsize=9, color=_INK, va="center")
    kinds: dict[str, Callable[[Axes, Answered, Span], None]] = {
        **{"stat": _stat, "bargauge": _bars, "table": _table, "timeseries": _lines},
        **{"heatmap": _heatmap, "state-timeline": _timeline},
    }
    is_graph = panel["type"] in ("timeseries", "heatmap", "state-timeline")
    inset = (0.045, 1.5 / rows) if is_graph else (0.012, 0.4 / rows)
    box = (left + inset[0], top - height + inset[1], width - inset[0] - 0.008, height - inset[1] - 1.0 / rows)
    axes = figure.add_axes(box)
    axes.set_facecolor("white")
    for side in axes.spines.values():
        side.set_color(_EDGE)
    if not answered.all:
        _say(axes, panel["fieldConfig"]["defaults"].get("noValue", ""))
        return
    kinds[panel["type"]](axes, answered, span)
    if is_graph:
        _time_axis(axes, span)
        for moment, colour in marks:
            axes.axvline(moment, color=_MARKS.get(colour, colour), linewidth=0.8, linestyle=":")


def _say(axes: Axes, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=_FAINT)


def _written(answered: Answered, value: float) -> str:
    defaults = answered.panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", ()):
        if mapping["type"] == "value" and (found := mapping["options"].get(f"{value:g}")):
            return str(found["text"])
    return written(value, defaults.get("unit"), defaults.get("decimals"))


def _stat(axes: Axes, answered: Answered, _: Span) -> None:
    axes.axis("off")
    text = _written(answered, answered.all[0].last)
    axes.text(0.5, 0.45, text, transform=axes.transAxes, ha="center", va="center", fontsize=19, color=_INK)


def _bars(axes: Axes, answered: Answered, _: Span) -> None:
    # As Grafana orders them: digits as numbers.
    ordered = sorted(answered.all, key=lambda one: [(int(d or 0), w) for d, w in _WORDS.findall(one.name)])
    series = ordered[:_MOST_BARS]
    left_out = len(ordered) - len(series)
    for row, one in enumerate(series):
        axes.barh(row, one.last, color="#5b8fd1", height=0.4)
        axes.text(one.last, row, f" {_written(answered, one.last)}", va="center", fontsize=7, color=_INK)
        axes.text(0, row - 0.42, one.name, fontsize=6.5, color=_FAINT, va="center")
    if left_out:
        axes.text(1, 0.02, f"and {left_out} more ", transform=axes.transAxes, ha="right", fontsize=7, color=_FAINT)
    axes.set_ylim(max(len(series), 4) - 0.4, -0.8)
    axes.margins(x=0.15)
    axes.set_xticks([])
    axes.set_yticks([])


def _lines(axes: Axes, answered: Answered, span: Span) -> None:
    defaults = answered.panel["fieldConfig"]["defaults"]
    style = "steps-post" if defaults["custom"].get("drawStyle") == "bars" else "default"
    moving = [one for one in answered.all if any(value > 0 for _, value in one.points)] or answered.all
    named = [one.name for one in moving[:_MOST_LEGENDS]]
    for number, one in enumerate(moving):
        label = one.name if one.name in named else None
        for stretch in _stretches(one, span):
            times, values = [at for at, _ in stretch], [value for _, value in stretch]
            lone = "." if len(stretch) == 1 else ""
            colour = f"C{number % 10}"
            axes.plot(times, values, color=colour, linewidth=1.2, marker=lone, label=label, drawstyle=style)
            label = None
    axes.set_ylim(0, 1.05 * defaults.get("max", max(value for one in moving for _, value in one.points) or 1))
    _value_axis(axes, answered)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize=6.5, frameon=False, handlelength=1,
        columnspacing=1,
    )  # fmt: skip


def _stretches(series: Series, span: Span) -> list[list[tuple[float, float]]]:
    """Cut where there is no value: a gap in the data is a gap in the line."""
    points = [point for point in series.points if point[1] == point[1]]
    stretches = [points[:1]] if points else []
    for before, point in pairwise(points):
        if point[0] - before[0] > 1.5 * span.step_seconds:
            stretches.append([])
        stretches[-1].append(point)
    return stretches


def _heatmap(axes: Axes, answered: Answered, _: Span) -> None:
    """Buckets as bands, from their cumulative counts."""
    found = sorted(answered.all, key=lambda one: float(one.labels["le"]))
    times = sorted({at for one in found for at, _ in one.points})
    below = dict.fromkeys(times, 0.0)
    bands: list[list[float]] = []
    for one in found:
        counts = dict(one.points)
        bands.append([max(0.0, counts.get(at, 0.0) - below[at]) for at in times])
        below = {at: counts.get(at, below[at]) for at in times}
    used = [number for number, band in enumerate(bands) if any(band)]
    last = (used[-1] if used else 0) + 1
    grid = [[value or float("nan") for value in band] for band in bands[:last]]
    axes.pcolormesh(times, range(last), grid, cmap="Oranges", shading="nearest")
    axes.set_yticks(range(last), labels=[f"{float(one.labels['le']):g}" for one in found[:last]])
    axes.tick_params(axis="y", labelsize=7, colors=_FAINT)


def _timeline(axes: Axes, answered: Answered, span: Span) -> None:
    [mapping] = [m for m in answered.panel["fieldConfig"]["defaults"]["mappings"] if m["type"] == "value"]
    for row, one in enumerate(answered.all[::-1]):
        for stretch in _stretches(one, span):
            for value, points in groupby(stretch, key=lambda point: point[1]):
                times = [at for at, _ in points]
                state = mapping["options"].get(f"{value:g}", {"color": _EDGE, "text": ""})
                colour = _MARKS.get(state["color"], state["color"])
                width = times[-1] - times[0] + span.step_seconds
                axes.barh(row, width, left=times[0], color=colour, height=0.7, linewidth=0)
        axes.text(0.004, row, one.name, transform=axes.get_yaxis_transform(), fontsize=8, color="white", va="center")
    seen = {f"{value:g}" for one in answered.all for _, value in one.points}
    for key, state in mapping["options"].items():
        if key in seen:
            axes.plot([], [], color=_MARKS.get(state["color"], state["color"]), linewidth=5, label=state["text"])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=7, fontsize=7, frameon=False)
    axes.set_yticks([])


def _table(axes: Axes, answered: Answered, _: Span) -> None:
    axes.axis("off")
    heads, rows = _cells(answered)
    height = min(1.0, 0.1 * (min(len(rows), _MOST_ROWS) + 1))
    cells = axes.table(
        rows[:_MOST_ROWS], colLabels=heads, loc="upper left", cellLoc="left", edges="horizontal",
        bbox=Bbox.from_bounds(0, 1 - height, 1, height),
    )  # fmt: skip
    cells.auto_set_font_size(False)
    cells.set_fontsize(7.5)
    for cell in cells.get_celld().values():
        cell.set_edgecolor(_EDGE)
        cell.get_text().set_color(_INK)


def _cells(answered: Answered) -> tuple[list[str], list[list[str]]]:
    """Rows by labels, columns by query, as the panel's transformations name and order them."""
    options: Json = next(t for t in answered.panel["transformations"] if t["id"] == "organize")["options"]
    names, left_out, order = options["renameByName"], options["excludeByName"], options["indexByName"]
    field = answered.panel["fieldConfig"]
    units = {o["matcher"]["options"]: o["properties"][0]["value"] for o in field["overrides"]}
    columns = sorted((name for name in order if not left_out.get(name)), key=lambda name: order[name])
    rows: list[dict[str, str]] = []
    for ref, found in answered.series.items():
        column = f"Value #{ref}" if len(answered.series) > 1 else "Value"
        unit = units.get(names.get(column, ""), field["defaults"].get("unit"))
        for one in found:
            labels = {name: value for name, value in one.labels.items() if name in columns}
            row = next((row for row in rows if column not in row and _agree(row, labels)), None)
            if row is None:
                rows.append(row := {})
            row |= labels | {column: written(one.last, unit)}
    cells = [[row.get(name, "") for name in columns] for row in rows]
    return [names.get(name, name) for name in columns], sorted(cells)


def _agree(row: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether Grafana makes one row of both: what they have both is the same."""
    return all(row[name] == value for name, value in labels.items() if name in row)


def _value_axis(axes: Axes, answered: Answered) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _written(answered, value)))
    axes.grid(axis="y", color=_EDGE, linewidth=0.5)
    axes.tick_params(axis="y", labelsize=7, colors=_FAINT)


def _time_axis(axes: Axes, span: Span) -> None:
    axes.set_xlim(span.start, span.end)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: time.strftime("%H:%M:%S", time.gmtime(at))))
    axes.tick_params(axis="x", labelsize=7, colors=_FAINT)
