"""`slipstream models`."""

import typer

from orchestrator.cli.options import Json, Url
from orchestrator.cli.session import session
from orchestrator.cli.status import state_text
from orchestrator.schemas import FileProblem, HfSource, ModelView, PypiSource


def models(ctx: typer.Context, as_json: Json = False, url: Url = None) -> None:
    """List the catalogue: every model, where it comes from, whether its files are here."""
    with session(ctx, url, as_json) as s:
        found = s.client.models()
        if as_json:
            s.emit(found)
            return
        if found.models:
            rows = [
                (
                    view.spec.name,
                    ", ".join(view.spec.aliases) or "-",
                    state_text(view.state),
                    "yes" if view.present else "no",
                    view.spec.speculation.type,
                    _source(view),
                )
                for view in found.models
            ]
            s.table(("MODEL", "ALIASES", "STATE", "ON DISK", "SPECULATION", "SOURCE"), rows)
        else:
            s.warn("no model: the orchestrator's folder of model files holds no valid *.yaml")
        for problem in found.problems:
            s.warn(_place(problem))


def _source(view: ModelView) -> str:
    match view.spec.source:
        case HfSource(hf=repository, file=file):
            return f"hf {repository}/{file}"
        case PypiSource(pypi=pin):
            return f"pypi {pin}"
        case source:
            return f"path {source.path}"


def _place(problem: FileProblem) -> str:
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    return f"{place}: {problem.message}"
