"""`slipstream status`."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.cli.invocation import Invocation, invoked
from orchestrator.cli.options import Json, Url
from orchestrator.cli.slots import running_slots, slots_as_json, tokens_per_second
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ServerState, ServerView, SlotSpeculation
from orchestrator.schemas.speculation import acceptance_ratio, mean_acceptance_length
from orchestrator.units import in_seconds, times_in_a_row

_NO_DATA = "-"
_COLUMNS = (
    *("MODEL", "STATE", "RUNNING", "WAITING", "SPECULATION"),
    *("SLOT", "BUSY", "DRAFTED", "ACCEPTED", "TOK/ROUND", "TOK/S"),
)
_STYLES = {ServerState.READY: "green", ServerState.FAILED: "red", ServerState.STOPPED: "dim"}


def status(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Name or alias of a model; every server without it.")] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Show every server: its state, and per slot how drafts fare. A dash is "no data"."""
    with invoked(ctx, url, as_json) as cli:
        servers = (cli.client.server(model),) if model else cli.client.servers().servers
        slots = running_slots(cli.client.speculation())
        if as_json:
            found = [view.model_dump(mode="json") | slots_as_json(slots.get(view.model, ())) for view in servers]
            cli.emit({"servers": found})
            return
        _warn_of_missing(cli)
        cli.table(_COLUMNS, [row for view in servers for row in _rows(view, slots.get(view.model, []))])
        for view in servers:
            for remark in _remarks(view, time.time()):
                cli.warn(f"{view.model}: {remark}")


def _warn_of_missing(cli: Invocation) -> None:
    try:
        cli.client.check_ready()
    except SlipstreamError as e:
        if e.code is Code.NO_ACCELERATOR:
            cli.warn(f"{e.message} ({e.hint})" if e.hint else e.message)


def state_text(state: ServerState) -> Text:
    """A state in its colour."""
    return Text(state, _STYLES.get(state, "yellow"))


def _rows(view: ServerView, slots: list[SlotSpeculation]) -> Iterator[tuple[str | Text, ...]]:
    """One row a slot; the server's own cells stand in its first row."""
    first: tuple[str | Text, ...] = (
        view.model,
        state_text(view.state),
        str(view.running),
        str(view.waiting),
        view.spec_type if view.instances or view.pid else _NO_DATA,
    )
    if not slots:
        yield (*first, *(_NO_DATA,) * (len(_COLUMNS) - len(first)))
    for slot in slots:
        yield (*first, str(slot.slot), "yes" if slot.busy else "no", *_figures(slot))
        first = ("",) * len(first)


def _remarks(view: ServerView, now: float) -> Iterator[str]:
    """What does not fit into a row."""
    if view.failure is not None:
        yield view.failure.message
    if view.quarantine is not None:
        left = in_seconds(max(0.0, view.quarantine.until - now))
        times = times_in_a_row(view.quarantine.strikes)
        yield f"in quarantine for {left} more, as it failed {times}; `slipstream clear {view.model}` lifts that"
    if view.waiting and view.waits_for:
        yield f"requests wait: {view.waits_for}"
    yield from view.warnings


def _figures(slot: SlotSpeculation) -> tuple[str, str, str, str]:
    accepted = acceptance_ratio(slot.accepted_tokens, slot.draft_tokens)
    length = mean_acceptance_length(slot.accepted_tokens, slot.verification_steps)
    speed = tokens_per_second(slot)
    return (
        str(slot.draft_tokens or _NO_DATA),
        _NO_DATA if accepted is None else f"{accepted:.1%}",
        _NO_DATA if length is None else f"{length:.2f}",
        _NO_DATA if speed is None else f"{speed:.1f}",
    )
