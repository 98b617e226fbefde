"""`slipstream start`, `stop`, `restart`, `clear` and `swap`."""

import shlex
from collections.abc import Callable
from typing import Annotated

import typer

from orchestrator.cli.invocation import INTERRUPTED, Invocation, invoked
from orchestrator.cli.options import Drain, DryRun, Flags, Json, Model, Url, parse_flags
from orchestrator.cli.progress import shown_progress
from orchestrator.schemas import Desired, Plan, ServerPut, ServerState, ServerView, SwapRequest


def start(
    ctx: typer.Context,
    model: Model,
    flag: Flags = None,
    no_flags: Annotated[bool, typer.Option("--no-flags", help="Drop the flags given earlier.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Start a server and wait until it is ready. Flags are kept for later starts."""
    if flag and no_flags:
        raise typer.BadParameter("--flag and --no-flags exclude each other")
    flags = {} if no_flags else parse_flags(flag)
    body = ServerPut(state=Desired.RUNNING, flags=flags)
    with invoked(ctx, url, as_json) as cli:
        if flags is None and not dry_run:
            _run(cli, model, lambda: cli.client.start(model))
        else:
            _run(cli, model, lambda: cli.client.put_server(model, body, dry_run=dry_run))


def stop(ctx: typer.Context, model: Model, drain: Drain = None, as_json: Json = False, url: Url = None) -> None:
    """Stop a server. A later request for its model starts it again."""
    with invoked(ctx, url, as_json) as cli:
        _run(cli, model, lambda: cli.client.stop(model, drain_seconds=drain))


def restart(ctx: typer.Context, model: Model, drain: Drain = None, as_json: Json = False, url: Url = None) -> None:
    """Stop a server and start it again, with its model file and flags as they are now."""
    with invoked(ctx, url, as_json) as cli:
        _run(cli, model, lambda: cli.client.restart(model, drain_seconds=drain))


def clear(ctx: typer.Context, model: Model, as_json: Json = False, url: Url = None) -> None:
    """Try a server again that failed too often: lifts its quarantine."""
    with invoked(ctx, url, as_json) as cli:
        view = cli.client.clear(model)
        if as_json:
            cli.emit(view)
        else:
            cli.say(f"{view.model} may be tried again; it is {view.state}")


def swap(
    ctx: typer.Context,
    model: Model,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="MODEL", help="Model to stop; repeat it. Unset: every other one."),
    ] = None,
    flag: Flags = None,
    drain: Drain = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Start MODEL in place of others. If it does not start, what ran before runs again."""
    # Not checked here: the orchestrator says what is wrong with a name, and which names there are.
    body = SwapRequest.model_construct(start=model, stop=tuple(stop) if stop else None, flags=parse_flags(flag))
    with invoked(ctx, url, as_json) as cli:
        _run(cli, model, lambda: cli.client.swap(body, dry_run=dry_run, drain_seconds=drain))


def _run(invocation: Invocation, model: str, call: Callable[[], ServerView | Plan]) -> None:
    try:
        with shown_progress(invocation, model):
            result = call()
    except KeyboardInterrupt:
        invocation.warn(
            f"not waiting any longer; the orchestrator goes on (see `slipstream status {shlex.quote(model)}`)"
        )
        raise typer.Exit(INTERRUPTED) from None
    if invocation.is_json:
        invocation.emit(result)
    elif isinstance(result, Plan):
        _show_plan(invocation, result)
    else:
        _show_view(invocation, result)


def _show_view(invocation: Invocation, view: ServerView) -> None:
    if view.state is ServerState.READY:
        speculation = "without speculation" if view.spec_type == "none" else f"speculation {view.spec_type}"
        invocation.say(f"{view.model} is ready, {speculation}; its last start took {view.start_seconds or 0:.1f} s")
    else:
        invocation.say(f"{view.model} is {view.state}")
    for warning in view.warnings:
        invocation.warn(f"warning: {warning}")


def _show_plan(invocation: Invocation, plan: Plan) -> None:
    if not plan.actions:
        invocation.say("nothing to do")
        return
    invocation.table(("DO", "MODEL", "WHY"), [(a.do, a.model, a.why) for a in plan.actions])
    for action in plan.actions:
        if action.argv:
            invocation.say(shlex.join(("llama-server", *action.argv)), "dim")
