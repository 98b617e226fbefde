"""`slipstream models`."""

import typer

from orchestrator.cli.invocation import invoked
from orchestrator.cli.options import Json, Url
from orchestrator.cli.status import state_text
from orchestrator.schemas import FileProblem, HfSource, ModelView, OllamaSource, PypiSource, UrlSource


def models(ctx: typer.Context, as_json: Json = False, url: Url = None) -> None:
    """List the catalogue: every model, where it comes from, whether its files are here."""
    with invoked(ctx, url, as_json) as cli:
        found = cli.client.models()
        if as_json:
            cli.emit(found)
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
            cli.table(("MODEL", "ALIASES", "STATE", "ON DISK", "SPECULATION", "SOURCE"), rows)
        else:
            cli.warn("no model: the orchestrator's folder of model files holds no valid *.yaml")
        for problem in found.problems:
            cli.warn(_place(problem))


def _source(view: ModelView) -> str:
    match view.spec.source:
        case HfSource(hf=repository, file=file):
            return f"hf {repository}/{file}"
        case PypiSource(pypi=pin):
            return f"pypi {pin}"
        case UrlSource(url=url):
            return url
        case OllamaSource(ollama=model):
            return f"ollama {model}"
        case source:
            return f"path {source.path}"


def _place(problem: FileProblem) -> str:
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    return f"{place}: {problem.message}"
