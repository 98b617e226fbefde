"""Long work: run in child processes, follow, cancel, keep, go on after a restart."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.jobs.jobs import Jobs, Kind

__all__ = ["Jobs", "Kind"]


def __getattr__(name: str) -> Any:
    # Not at import: every child imports this package on its way to `child`, and needs none of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.jobs import jobs

    return getattr(jobs, name)
