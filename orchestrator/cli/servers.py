"""`slipstream start`, `stop`, `restart` and `swap`."""

import shlex
from collections.abc import Callable
from typing import Annotated

import typer

from orchestrator.cli.options import DryRun, Flags, Json, Model, Url, parse_flags
from orchestrator.cli.progress import shown_progress
from orchestrator.cli.session import Session, session
from orchestrator.schemas import Desired, Plan, ServerPut, ServerState, ServerView, SwapRequest

_INTERRUPTED = 130


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
    with session(ctx, url, as_json) as s:
        if flags is None and not dry_run:
            _run(s, model, lambda: s.client.start(model))
        else:
            _run(s, model, lambda: s.client.put_server(model, body, dry_run=dry_run))


def stop(ctx: typer.Context, model: Model, as_json: Json = False, url: Url = None) -> None:
    """Stop a server. A later request for its model starts it again."""
    with session(ctx, url, as_json) as s:
        _run(s, model, lambda: s.client.stop(model))


def restart(ctx: typer.Context, model: Model, as_json: Json = False, url: Url = None) -> None:
    """Stop a server and start it again, with its model file and flags as they are now."""
    with session(ctx, url, as_json) as s:
        _run(s, model, lambda: s.client.restart(model))


def swap(
    ctx: typer.Context,
    model: Model,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="MODEL", help="Model to stop; repeat it. Unset: every other one."),
    ] = None,
    flag: Flags = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Start MODEL in place of others. If it does not start, what ran before runs again."""
    body = SwapRequest.model_construct(start=model, stop=tuple(stop) if stop else None, flags=parse_flags(flag))
    with session(ctx, url, as_json) as s:
        _run(s, model, lambda: s.client.swap(body, dry_run=dry_run))


def _run(session: Session, model: str, call: Callable[[], ServerView | Plan]) -> None:
    try:
        with shown_progress(session, model):
            result = call()
    except KeyboardInterrupt:
        session.warn(f"not waiting any longer; the orchestrator goes on (see `slipstream status {shlex.quote(model)}`)")
        raise typer.Exit(_INTERRUPTED) from None
    if session.is_json:
        session.emit(result)
    elif isinstance(result, Plan):
        _show_plan(session, result)
    else:
        _show_view(session, result)


def _show_view(session: Session, view: ServerView) -> None:
    if view.state is ServerState.READY:
        speculation = "without speculation" if view.spec_type == "none" else f"speculation {view.spec_type}"
        session.say(f"{view.model} is ready, {speculation}; its last start took {view.start_seconds or 0:.1f} s")
    else:
        session.say(f"{view.model} is {view.state}")
    for warning in view.warnings:
        session.warn(f"warning: {warning}")


def _show_plan(session: Session, plan: Plan) -> None:
    if not plan.actions:
        session.say("nothing to do")
        return
    session.table(("DO", "MODEL", "WHY"), [(a.do, a.model, a.why) for a in plan.actions])
    for action in plan.actions:
        if action.argv:
            session.say(shlex.join(("llama-server", *action.argv)), "dim")
