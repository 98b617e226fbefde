"""The work of a `verify` job: `python -m orchestrator.store.checking`."""

from pathlib import Path
from typing import Any

from orchestrator.jobs.child import Reporter, run
from orchestrator.schemas import Strict
from orchestrator.store.blobs import Blobs
from orchestrator.store.layout import Layout
from orchestrator.store.verify import verify


class CheckRequest(Strict):
    """What is to be read again: some files, or the whole store."""

    models_dir: Path
    cache: Path
    paths: tuple[Path, ...] | None = None
    unplaced: tuple[str, ...] = ()
    """Names of what has no path yet, and so is missing."""


def check(request: dict[str, Any], report: Reporter) -> dict[str, Any]:
    """What is right, wrong and missing, as a VerifyView."""
    wanted = CheckRequest.model_validate(request)
    blobs = Blobs(Layout(wanted.models_dir, wanted.cache).root)
    found = verify(blobs, report, wanted.paths)
    missing = tuple(sorted((*found.missing, *wanted.unplaced)))
    return found.model_copy(update={"missing": missing}).model_dump(mode="json")


if __name__ == "__main__":
    run(check)
