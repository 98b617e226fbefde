"""What the page shows, read as the API's own routes read it."""

import time
from collections import deque
from dataclasses import dataclass

from orchestrator import __version__
from orchestrator.api import Context
from orchestrator.api.jobs import list_jobs
from orchestrator.api.models import models_of
from orchestrator.api.servers import servers_of
from orchestrator.api.speculation import speculation_of
from orchestrator.page.rows import Row, counts
from orchestrator.page.slots import slots_of
from orchestrator.schemas import FileProblem, JobView, ServerState, Transition
from orchestrator.units import in_seconds

_SHOWN_EVENTS = 15
# Besides those that are not over.
_SHOWN_ENDED_JOBS = 5
_DOWN = (ServerState.STOPPED, ServerState.FAILED)


@dataclass(frozen=True)
class Overview:
    """Everything at one moment, `now` in Unix seconds. Jobs and events stand the newest first.

    `about` says what runs here; `window` is the time that figures of slots go back to, in words; `missing`
    says which accelerators are expected and not there.
    """

    now: float
    about: str = ""
    window: str = ""
    rows: tuple[Row, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    jobs: tuple[JobView, ...] = ()
    events: tuple[Transition, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Servers by state."""
        return counts(self.rows)


async def look(context: Context) -> Overview:
    """What there is now. No sleeping model is woken for it."""
    await context.manager.refresh()
    models = await models_of(context.manager)
    speculation = await speculation_of(context)
    # Last, as it waits for nobody: what is shown of servers and jobs is of one moment.
    servers = servers_of(context.manager).servers
    jobs = (await list_jobs(context.jobs)).jobs
    now = time.time()
    by_name = {model.spec.name: model for model in models.models}
    slots = {model.model: slots_of(model) for model in speculation.models}
    pulls = {job.subject: job for job in jobs if job.kind == "pull" and not job.state.is_final}
    up = {server.model for server in servers if server.state not in _DOWN}
    rows = tuple(
        Row(
            server,
            by_name.get(server.model),
            now,
            pull=pulls.get(server.model),
            others_run=bool(up - {server.model}),
            slots=slots.get(server.model, ()) if server.model in up else (),
        )
        for server in servers
    )
    window = "" if speculation.window_seconds is None else in_seconds(speculation.window_seconds)
    events = deque([event async for event in context.manager.events(is_live=False)], maxlen=_SHOWN_EVENTS)
    about = f"Slipstream {__version__}, llama-server {context.manager.flags.version}"
    missing = tuple(missing.message for missing in context.missing)
    return Overview(now, about, window, rows, models.problems, _shown(jobs), tuple(reversed(events)), missing)


def _shown(jobs: tuple[JobView, ...]) -> tuple[JobView, ...]:
    ended = [job for job in jobs if job.state.is_final][:_SHOWN_ENDED_JOBS]
    return (*(job for job in jobs if not job.state.is_final), *ended)
