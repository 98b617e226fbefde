"""Transitions of servers as they come."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from orchestrator.api.answers import PING_SECONDS, EventStream, errors, stream
from orchestrator.api.context import ManagerDep
from orchestrator.schemas import Transition

router = APIRouter(prefix="/api", tags=["servers"])

_LARGEST_NUMBER = (1 << 63) - 1
_EXAMPLE = (
    'event: transition\nid: 17\ndata: {"number": 17, "at": 1790000000.25, "model": "smollm2-135m", "instance": 3, '
    '"host": "local", "state": "ready", "why": "loaded and warmed up"}\n\n'
)
After = Annotated[
    int, Query(ge=0, le=_LARGEST_NUMBER, description="Number of the last transition that is known.", examples=[16])
]
LastEventId = Annotated[
    int,
    Header(ge=0, le=_LARGEST_NUMBER, description="The same, as browsers send it; goes before `after`.", examples=[16]),
]


@router.get(
    "/events",
    response_class=EventStream,
    responses=stream(
        "Events `transition`, whose data is a Transition and whose id its number.",
        _EXAMPLE,
        "transition",
        data="Transition",
    )
    | errors(),
)
async def follow_events(
    manager: ManagerDep,
    after: After = 0,
    last_event_id: LastEventId = 0,
    follow: Annotated[bool, Query(description="Go on with new ones as they come.")] = True,
) -> EventSourceResponse:
    """Every change of state of every server with its reason, as server-sent events `transition`.

    Begins with those of the last 1000 that come after the number that is known. Numbers begin anew when the
    orchestrator does; a number of before stands for none. A comment comes every 15 s; the stream ends at shutdown.
    """
    known = last_event_id or after
    return EventStream(_sent(manager.events(known, is_live=follow)), ping=PING_SECONDS)


async def _sent(events: AsyncIterator[Transition]) -> AsyncIterator[ServerSentEvent]:
    async for event in events:
        yield ServerSentEvent(event.model_dump_json(), event="transition", id=str(event.number))
