"""Templates, and how figures stand in them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from orchestrator.page.overview import Overview
from orchestrator.page.rows import age
from orchestrator.schemas import JobProgress
from orchestrator.units import in_figures

_FOLDER = Path(__file__).with_name("templates")


class Templates:
    """The HTML of the page. Whatever is put into it is escaped."""

    def __init__(self) -> None:
        environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {"age": _age, "figures": _figures, "iso": _iso}
        # Read now: nothing of this waits for the disk later, and a template that is wrong ends the start.
        self._templates = {name: environment.get_template(name) for name in environment.list_templates()}

    def page(self, overview: Overview, *, is_locked: bool) -> str:
        """The whole page; locked it asks for a key."""
        return self._render("page.html", overview, is_locked=is_locked)

    def live(self, overview: Overview) -> str:
        """The parts of it that change, each an element with an id."""
        return self._render("live.html", overview)

    def _render(self, name: str, overview: Overview, **values: Any) -> str:
        return self._templates[name].render(overview=overview, **values)


@pass_context
def _age(context: Context, at: float) -> str:
    return age(at, context["overview"].now)


def _figures(progress: JobProgress) -> str:
    return in_figures(progress.done_bytes, progress.total_bytes, progress.rate_bytes_per_second, progress.eta_seconds)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
