"""`slipstream events` and `audit`: what happened, and who asked for it."""

import time
from contextlib import suppress
from typing import Annotated

import typer

from orchestrator.cli.invocation import Invocation, invoked
from orchestrator.cli.options import Json, Url
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import AuditEntry, Transition

_NOT_ANSWERED = "-"


def events(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Name of a model; every one without it.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only those with a greater number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones, until Ctrl-C.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Print every change of state of the servers, with its reason; with --json an object a line."""
    with invoked(ctx, url, as_json) as cli, suppress(KeyboardInterrupt):
        for event in cli.client.events(after=after, follow=follow):
            if model is None or event.model == model:
                _show(cli, event)
        if follow:
            raise SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator ended the stream: it is shutting down")


def audit(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Entries, at most.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only those with a smaller number.")] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the calls that could change something, the newest first: who, when, what, and how they were answered."""
    with invoked(ctx, url, as_json) as cli:
        found = cli.client.audit(limit=limit, before=before)
        if as_json:
            cli.emit(found)
        elif found.entries:
            columns = ("NUMBER", "TIME", "KEY", "CLIENT", "CALL", "STATUS", "MS", "COUNT")
            cli.table(columns, [_row(entry) for entry in found.entries])
        else:
            cli.warn("no entry")


def _show(cli: Invocation, event: Transition) -> None:
    if cli.is_json:
        cli.emit(event)
        return
    instance = "" if event.instance is None else f"/{event.instance}"
    place = "" if event.host is None else f" on {event.host}"
    cli.say(f"{event.number}  {_local(event.at)}  {event.model}{instance}{place}: {event.state}: {event.why}")


def _row(entry: AuditEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        _local(entry.at),
        entry.key,
        entry.client,
        f"{entry.method} {entry.path}" + (" (dry run)" if entry.dry_run else ""),
        _NOT_ANSWERED if entry.status is None else str(entry.status),
        _NOT_ANSWERED if entry.milliseconds is None else f"{entry.milliseconds:.0f}",
        str(entry.count),
    )


def _local(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
