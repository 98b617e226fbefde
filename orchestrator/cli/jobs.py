"""`slipstream jobs`."""

import time
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.cli.invocation import INTERRUPTED, Invocation, invoked, show_error
from orchestrator.cli.job_progress import error_of, events_of, follow_job, step_of, succeeded
from orchestrator.cli.options import Json, Url
from orchestrator.schemas import JobState, JobView
from orchestrator.units import in_seconds

_STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.RUNNING: "yellow"}


def jobs(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(help="A job, by its id; every job without it.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show its lines and progress until it ends.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End it at once.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the orchestrator's jobs, follow one, or end it."""
    if follow and cancel:
        raise typer.BadParameter("--follow and --cancel exclude each other")
    if job is None and (follow or cancel):
        raise typer.BadParameter("which job? `slipstream jobs` lists them")
    with invoked(ctx, url, as_json) as cli:
        if job is None:
            _list(cli)
        elif follow:
            _follow(cli, job)
        elif cancel:
            _show(cli, cli.client.cancel_job(job))
        else:
            _show(cli, cli.client.job(job))


def _list(cli: Invocation) -> None:
    found = cli.client.jobs()
    if cli.is_json:
        cli.emit(found)
    elif found.jobs:
        _table(cli, found.jobs)
    else:
        cli.warn("no job")


def _show(cli: Invocation, view: JobView) -> None:
    if cli.is_json:
        cli.emit(view)
        return
    _table(cli, (view,))
    if view.error is not None:
        show_error(error_of(view))


def _follow(cli: Invocation, id: str) -> None:
    if not cli.is_json:
        view = follow_job(cli, id)
        cli.say(f"{view.kind} {view.subject} {view.state}")
        return
    try:
        for event in events_of(cli, id):
            cli.emit({"event": event.name, "data": event.data.model_dump(mode="json")})
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    assert isinstance(event.data, JobView)
    succeeded(event.data)


def _table(cli: Invocation, views: tuple[JobView, ...]) -> None:
    now = time.time()
    rows = [
        (
            view.id,
            view.kind,
            view.subject,
            Text(view.state, _STYLES.get(view.state, "")),
            _progress(view),
            _age(view, now),
        )
        for view in views
    ]
    cli.table(("JOB", "KIND", "SUBJECT", "STATE", "PROGRESS", "AGE"), rows)


def _progress(view: JobView) -> str:
    progress = view.progress
    if progress is None:
        return view.error.code if view.error else "-"
    share = f" {progress.done_bytes / progress.total_bytes:.0%}" if progress.total_bytes else ""
    return step_of(progress) + share


def _age(view: JobView, now: float) -> str:
    return in_seconds(max(0.0, now - view.created))
