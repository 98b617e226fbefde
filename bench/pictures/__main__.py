"""`make pictures`: docs/pictures/*.png, each panel of each dashboard drawn from what Prometheus answers.

Without --prometheus a stack of processes is started, driven for a while and ended again.
"""

import argparse
import shutil
import time
from pathlib import Path

import httpx

from bench.pictures.answers import Json, Span, answered, dashboards, read
from bench.pictures.drawing import draw
from bench.pictures.stage import running_stage
from dashboards import substitute
from tests import REPOSITORY

OUT = REPOSITORY / "docs" / "pictures"
# Of a line across a panel of a third of the width.
_POINTS = 120
_SCRAPES_IN_A_RATE = 4


def main() -> None:
    """Parse arguments, draw."""
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__)
    parser.add_argument("--prometheus", metavar="URL", help="draw what this one has")
    parser.add_argument("--minutes", type=float, default=15.0, help="of its last minutes (default: 15)")
    parser.add_argument("--interval", type=float, default=5.0, help="its scrape interval, seconds (default: 5)")
    parser.add_argument("--server", type=Path, help="llama-server to start (default: the newest one built)")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures (default: docs/pictures)")
    arguments = parser.parse_args()
    if arguments.prometheus:
        end = time.time()
        draw_all(arguments.prometheus, end - 60 * arguments.minutes, end, arguments.interval, arguments.out)
        return
    if shutil.which("prometheus") is None:
        parser.error("there is no `prometheus` here (Debian package prometheus); name a running one with --prometheus")
    with running_stage(arguments.server) as stage:
        began, ended = stage.play()
        draw_all(stage.prometheus_url, began, ended, stage.interval_seconds, arguments.out)


def draw_all(url: str, start: float, end: float, interval_seconds: float, out: Path) -> None:
    """A picture of each dashboard; Unix times."""
    out.mkdir(parents=True, exist_ok=True)
    step = max(interval_seconds, (end - start) / _POINTS)
    span = Span(start, end, step, max(step + interval_seconds, _SCRAPES_IN_A_RATE * interval_seconds))
    for path in dashboards():
        dashboard = read(path)
        picture = out / f"{path.stem}.png"
        draw(dashboard, answered(dashboard, url, span), _marks(dashboard, url, span), span, picture)
        print(f"{picture}: {picture.stat().st_size // 1024} KiB")


def _marks(dashboard: Json, url: str, span: Span) -> list[tuple[float, str]]:
    """Times and colours of the events that fall into the range; a value is a moment in milliseconds."""
    found: set[tuple[float, str]] = set()
    for annotation in dashboard["annotations"]["list"]:
        if annotation.get("useValueForTime"):
            query = {"query": substitute(annotation["target"]["expr"]), "start": span.start, "end": span.end}
            answer = httpx.post(f"{url}/api/v1/query_range", data=query | {"step": span.step_seconds}, trust_env=False)
            values = (float(v) for one in answer.raise_for_status().json()["data"]["result"] for _, v in one["values"])
            found |= {(value / 1000, annotation["iconColor"]) for value in values}
    return sorted(mark for mark in found if span.start < mark[0] < span.end)


if __name__ == "__main__":
    main()
