"""The work of a `pull` job: bring every file a model needs, prove them, graft if asked, look whether they fit.

Runs as a child process: `python -m orchestrator.store.pull`.
"""

import shutil
from pathlib import Path
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.graft import graft
from orchestrator.gguf.preflight import preflight, unfit
from orchestrator.jobs.child import Reporter, run
from orchestrator.schemas import Source, Speculation, Strict
from orchestrator.store.blobs import PARTIAL_FOLDER, Blobs
from orchestrator.store.bring import Bringer
from orchestrator.store.fetch import hold
from orchestrator.store.grafts import GraftPlace, graft_place
from orchestrator.store.layout import Layout, Place


class PullRequest(Strict):
    """What a pull needs to know; it says no secret."""

    models_dir: Path
    cache: Path
    source: Source
    drafter: Source | None = None
    donor: Source | None = None
    speculation: Speculation = Speculation()
    update: bool = False
    is_pinned: bool = True


def pull(request: dict[str, Any], report: Reporter) -> dict[str, Any]:
    """Everything in place, or an error that says what is not. What is there already is not brought again."""
    wanted = PullRequest.model_validate(request)
    layout = Layout(wanted.models_dir, wanted.cache)
    bringer = Bringer(layout, report, update=wanted.update)
    base = bringer.bring(wanted.source)
    drafter = bringer.bring(wanted.drafter) if wanted.drafter else None
    target = base.path
    if wanted.donor is not None:
        target = make_graft(layout, base, bringer.bring(wanted.donor), report)
    report.phase("checking")
    problems = preflight(
        target,
        drafter.path if drafter else None,
        tuple(wanted.speculation.type.split(",")),
        wanted.speculation.n_max,
        is_pinned=wanted.is_pinned,
    )
    for problem in problems:
        report.line(f"{problem.severity}: {problem.message}")
    if errors := [p for p in problems if p.severity == "error"]:
        raise unfit(errors)
    bringer.settle()
    blobs = Blobs(layout.root)
    places = [base, *([drafter] if drafter else [])]
    files = [_told(blobs, path) for place in places for path in place.files]
    if target != base.path:
        files.append(_told(blobs, target))
    return {"files": files, "warnings": [p.message for p in problems if p.severity == "warning"]}


def make_graft(layout: Layout, base: Place, donor: Place, report: Reporter) -> Path:
    """The graft of two sources, made unless it is there. SlipstreamError graft_refused says why it cannot be."""
    place = _graft_place(layout, base, donor)
    partial = layout.root / PARTIAL_FOLDER / place.folder.name
    with hold(partial, report, place.path.name):
        if not place.is_present:
            _make_graft(Blobs(layout.root), place, base, donor, report)
            if _graft_place(layout, base, donor) != place:
                raise SlipstreamError(
                    Code.CONFLICT,
                    f"{base.path.name} or {donor.path.name} was changed while it was grafted",
                    hint="pull again when nobody writes to it",
                )
            place.record(base, donor)
        shutil.rmtree(partial, ignore_errors=True)
    return place.path


def _graft_place(layout: Layout, base: Place, donor: Place) -> GraftPlace:
    try:
        return graft_place(layout, base, donor)
    except OSError as e:
        raise SlipstreamError(
            Code.SOURCE_NOT_FOUND, f"{base.path.name} or {donor.path.name} has gone meanwhile: {e.strerror}"
        ) from e


def _make_graft(blobs: Blobs, place: GraftPlace, base: Place, donor: Place, report: Reporter) -> None:
    def known(files: Place) -> str | None:
        return blobs.sha256_of(files.path) if len(files.files) == 1 else None

    def progress(done_bytes: int, total_bytes: int) -> None:
        if not begun:
            begun.append(True)
            report.phase("grafting", total_bytes, place.path.name)
        report.advance(done_bytes)

    begun: list[bool] = []
    place.folder.mkdir(parents=True, exist_ok=True)
    plan = graft(
        base.path,
        donor.path,
        place.path,
        overwrite=True,
        base_sha256=known(base),
        donor_sha256=known(donor),
        progress=progress,
    )
    for change in plan.keys:
        report.line(f"{change.key}: {change.before or 'none'} -> {change.after or 'none'}")
    report.line(f"{len(plan.tensors)} tensors grafted onto {plan.base_blocks} blocks")
    for warning in plan.warnings:
        report.line(f"warning: {warning}")


def _told(blobs: Blobs, path: Path) -> dict[str, Any]:
    return {"name": path.name, "size_bytes": path.stat().st_size, "sha256": blobs.sha256_of(path)}


if __name__ == "__main__":
    run(pull)
