"""The dashboards and where they stand."""

import json
from pathlib import Path

from dashboards.latency import LATENCY
from dashboards.machines import MACHINES
from dashboards.model import Dashboard
from dashboards.overview import OVERVIEW
from dashboards.speculation import SPECULATION

FOLDER = Path(__file__).resolve().parent.parent / "grafana" / "dashboards"
DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, SPECULATION, LATENCY, MACHINES)


def render(dashboard: Dashboard) -> str:
    """The file of one dashboard, `FOLDER/UID.json`."""
    return json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"
