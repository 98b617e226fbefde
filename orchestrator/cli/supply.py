"""`slipstream add`, `pull`, `verify` and `gc`."""

from typing import Annotated

import typer

from orchestrator.cli.invocation import Invocation, invoked
from orchestrator.cli.job_progress import follow_job
from orchestrator.cli.options import Json, Model, Url
from orchestrator.schemas import AddRequest, GcView, StoredFile, VerifyRequest, VerifyView
from orchestrator.units import in_bytes


def add(
    ctx: typer.Context,
    origin: Annotated[
        str,
        typer.Argument(help="hf:OWNER/NAME@REVISION:QUANT or hf:OWNER/NAME:FILE as far as needed; or ollama:NAME:TAG."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the model; unset: told from ORIGIN.")] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="Quant or file of the drafter, or `none`; unset: the only one there is."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the model file; write nothing.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Write a model file from what a repository or an Ollama store holds, drafters included."""
    # Not checked here: the orchestrator says what is wrong with an origin.
    body = AddRequest.model_construct(origin=origin, name=name, drafter=drafter)
    with invoked(ctx, url, as_json) as cli:
        view = cli.client.add(body, dry_run=dry_run)
        if as_json:
            cli.emit(view)
            return
        cli.say(f"{'would write' if dry_run else 'wrote'} {view.file}: model {view.spec.name}")
        for note in view.notes:
            cli.say(f"  {note}", "dim")
        if not dry_run:
            cli.say(f"bring its files with: slipstream pull {view.spec.name}")


def pull(
    ctx: typer.Context,
    model: Model,
    update: Annotated[
        bool, typer.Option("--update", help="Look branches up again, and bring what has changed.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Bring, verify and graft every file a model needs. Ctrl-C ends the waiting, not the job."""
    with invoked(ctx, url, as_json) as cli:
        job = follow_job(cli, cli.client.pull(model, update=update).id)
        if as_json:
            cli.emit(job)
            return
        files = (job.result or {}).get("files", [])
        rows = [(f["name"], in_bytes(f["size_bytes"]), f["sha256"] or "not hashed") for f in files]
        cli.table(("FILE", "SIZE", "SHA256"), rows)
        for warning in (job.result or {}).get("warnings", []):
            cli.warn(f"warning: {warning}")


def verify(
    ctx: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(help="Models; the whole store without one.")] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Compare files with their digests again. What is wrong is put aside, and has to be pulled anew."""
    with invoked(ctx, url, as_json) as cli:
        job = follow_job(cli, cli.client.verify(VerifyRequest(models=tuple(models) if models else None)).id)
        found = VerifyView.model_validate(job.result)
        if as_json:
            cli.emit(found)
        else:
            _show_verified(cli, found)
        if found.wrong or found.unreadable or found.missing:
            raise typer.Exit(1)


def gc(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; touch nothing.")] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Remove files of the store that no model, no graft in use and no running server refers to."""
    with invoked(ctx, url, as_json) as cli:
        view = cli.client.collect(dry_run=dry_run)
        if as_json:
            cli.emit(view)
            return
        _show_collected(cli, view)


def ollama(ctx: typer.Context, as_json: Json = False, url: Url = None) -> None:
    """List the models that Ollama has on the orchestrator's machine, and the llama.cpp its runner is built from."""
    with invoked(ctx, url, as_json) as cli:
        view = cli.client.ollama()
        if as_json:
            cli.emit(view)
            return
        for name in view.models:
            cli.say(name)
        if view.runner is None:
            cli.warn("no llama-server of Ollama's was found (OLLAMA_LIB_DIR names its folder)")
        else:
            cli.warn(f"its llama-server: {view.runner.version}, llama.cpp commit {view.runner.commit or 'unknown'}")


def _show_verified(cli: Invocation, found: VerifyView) -> None:
    for wrong in found.wrong:
        names = ", ".join(wrong.names) or "a file"
        where = f"; its bytes lie in quarantine as {wrong.quarantined}" if wrong.quarantined else ""
        cli.warn(f"{names} has sha256 {wrong.actual_sha256}, expected {wrong.expected_sha256}{where}")
    for unreadable in found.unreadable:
        cli.warn(f"{', '.join(unreadable.names)} could not be read: {unreadable.reason}")
    for name in found.missing:
        cli.warn(f"{name} is not there")
    if found.unrecorded:
        names = ", ".join(name for file in found.unrecorded for name in file.names)
        cli.say(f"without a digest to compare with: {names}", "dim")
    rate = f", {in_bytes(round(found.read_bytes / found.seconds))}/s" if found.seconds else ""
    cli.say(f"{len(found.ok)} right, {len(found.wrong)} wrong; {in_bytes(found.read_bytes)} read{rate}")


def _show_collected(cli: Invocation, view: GcView) -> None:
    if view.removed:
        cli.table(("SIZE", "NAMES"), [(in_bytes(f.size_bytes), _names(f)) for f in view.removed])
    verb = "would free" if view.dry_run else "freed"
    cli.say(f"{len(view.removed)} files; {verb} {in_bytes(view.freed_bytes)}")


def _names(file: StoredFile) -> str:
    return ", ".join(file.names) or f"content {file.sha256}"
