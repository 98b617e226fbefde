"""Grafana dashboards: what they ask, in Python; what Grafana reads, as JSON. `python -m dashboards` writes it."""

from dashboards.asked import Asked, panels, queries, substitute
from dashboards.files import DASHBOARDS, FOLDER, render

__all__ = ["DASHBOARDS", "FOLDER", "Asked", "panels", "queries", "render", "substitute"]
