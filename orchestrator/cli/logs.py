"""`slipstream logs`."""

from contextlib import suppress
from typing import Annotated

import typer

from orchestrator.cli.invocation import invoked, plain
from orchestrator.cli.options import Json, Model, Url


def logs(
    ctx: typer.Context,
    model: Model,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, max=10_000, help="Lines from before, at most.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Print the log of a server; with --json an object a line."""
    with invoked(ctx, url, as_json) as cli, suppress(KeyboardInterrupt):
        for line in cli.client.logs(model, tail=tail, follow=follow):
            if as_json:
                cli.emit({"model": model, "line": line})
            else:
                typer.echo(plain(line))
