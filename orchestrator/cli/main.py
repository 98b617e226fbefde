"""The Typer application: its commands, and what becomes of errors."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli import chat, events, gguf, inspect, jobs, logs, models, serve, servers, status, supply, traffic
from orchestrator.cli.images import images
from orchestrator.cli.invocation import show_error
from orchestrator.cli.options import Url
from orchestrator.errors import Code, SlipstreamError

app = typer.Typer(
    name="slipstream",
    help="Serve models with speculative decoding, and see what it does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    serve.serve,
    models.models,
    supply.add,
    supply.pull,
    status.status,
    servers.start,
    servers.stop,
    servers.restart,
    servers.swap,
    servers.clear,
    logs.logs,
    events.events,
    events.audit,
    jobs.jobs,
    inspect.inspect,
    inspect.preflight,
    gguf.plan,
    gguf.graft,
    gguf.extract,
    gguf.strip,
    supply.verify,
    supply.gc,
    supply.ollama,
    chat.chat,
    traffic.bench_traffic,
):
    app.command()(command)
app.add_typer(images, name="images")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    url: Url = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    ctx.obj = url


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Exit status: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a substitute.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    try:
        app(arguments, prog_name="slipstream")
    except SlipstreamError as e:
        show_error(e)
        sys.exit(1)
    except OSError as e:
        # Such as a full disk under stdout.
        show_error(SlipstreamError(Code.INTERNAL, f"{e.strerror or e}"))
        sys.exit(1)
