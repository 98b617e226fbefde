"""Jobs: how far long work is, and its end."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Path
from sse_starlette import EventSourceResponse, ServerSentEvent

from orchestrator.api.answers import PING_SECONDS, EventStream, errors, stream
from orchestrator.api.context import JobsDep
from orchestrator.errors import Code
from orchestrator.schemas import JobEvent, JobLine, JobList, JobView

router = APIRouter(prefix="/api/jobs", tags=["jobs"])
_EVENTS = ("job", "line", "progress", "end")
_EXAMPLE = 'event: line\nid: 1\ndata: {"number": 1, "at": 1790000000.25, "text": "fetching"}\n\n'

JobId = Annotated[str, Path(description="Identity of a job.", examples=["8f14e45f"])]
_LARGEST_LINE = (1 << 63) - 1
LastEventId = Annotated[
    int,
    Header(
        ge=0, le=_LARGEST_LINE, description="Number of the last line that is known: those after it come.", examples=[17]
    ),
]


@router.get("", responses=errors())
async def list_jobs(jobs: JobsDep) -> JobList:
    """Live jobs and the last ones that have ended, the newest first."""
    return jobs.list()


@router.get("/{id}", responses=errors(Code.NOT_FOUND))
async def get_job(id: JobId, jobs: JobsDep) -> JobView:
    """One job."""
    return jobs.get(id)


@router.delete("/{id}", responses=errors(Code.NOT_FOUND))
async def cancel_job(id: JobId, jobs: JobsDep) -> JobView:
    """Kill the work; answers within a second with the job as it has ended. One that had ended stays as it is."""
    return await jobs.cancel(id)


@router.get(
    "/{id}/events",
    response_class=EventStream,
    responses=stream(
        "Events `job`, `line`, `progress` and `end`: JobView, JobLine, JobProgress, JobView.", _EXAMPLE, *_EVENTS
    )
    | errors(Code.NOT_FOUND),
)
async def follow_job(id: JobId, jobs: JobsDep, last_event_id: LastEventId = 0) -> EventSourceResponse:
    """The job as server-sent events that can be joined at any time.

    `job` first, then `line` from the first line on with the line's number as id, `progress` as it comes, and `end`
    with the job as it has ended. A stream that closes without `end` was cut off: ask again with Last-Event-ID.
    """
    return EventStream(_sent(jobs.follow(id, last_event_id)), ping=PING_SECONDS)


async def _sent(events: AsyncIterator[JobEvent]) -> AsyncIterator[ServerSentEvent]:
    async for event in events:
        number = str(event.data.number) if isinstance(event.data, JobLine) else None
        yield ServerSentEvent(event.data.model_dump_json(), event=event.name, id=number)
