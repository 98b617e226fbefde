"""Servers: desired state, lifecycle, logs."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from orchestrator.api.answers import LIFECYCLE, OF_A_MODEL, PING_SECONDS, EventStream, errors, stream
from orchestrator.api.context import DrainSeconds, ManagerDep, ModelPath
from orchestrator.schemas import FlagInfo, Plan, ServerList, ServerPut, ServerView, SwapRequest
from orchestrator.servers import Manager

router = APIRouter(prefix="/api", tags=["servers"])
DryRun = Annotated[bool, Query(description="Check everything and answer what would happen; touch nothing.")]


@router.get("/servers", responses=errors())
async def list_servers(manager: ManagerDep) -> ServerList:
    """Every server, one a model."""
    await manager.refresh()
    return servers_of(manager)


def servers_of(manager: Manager) -> ServerList:
    """The same of the catalogue as it was last read."""
    return ServerList(servers=tuple(manager.view(s) for s in manager.servers()))


@router.get("/servers/{model}", responses=errors(*OF_A_MODEL))
async def get_server(model: ModelPath, manager: ManagerDep) -> ServerView:
    """One server."""
    await manager.refresh()
    return manager.view(manager.server(model))


@router.put("/servers/{model}", responses=errors(*LIFECYCLE))
async def put_server(
    model: ModelPath, body: ServerPut, manager: ManagerDep, dry_run: DryRun = False, drain_seconds: DrainSeconds = None
) -> ServerView | Plan:
    """Set desired state and flags; answers when it is done.

    Flags are checked against the binary's own `--help` first. If a running server does not come back with the
    new flags, it runs with the earlier ones again and the answer says why.
    """
    return await manager.put(model, body, dry_run=dry_run, drain_seconds=drain_seconds)


@router.post("/servers/{model}/start", responses=errors(*LIFECYCLE))
async def start_server(model: ModelPath, manager: ManagerDep, dry_run: DryRun = False) -> ServerView | Plan:
    """Start the server and keep it running; answers when it is ready."""
    return await (manager.plan(model, "start") if dry_run else manager.start(model))


@router.post("/servers/{model}/stop", responses=errors(*LIFECYCLE))
async def stop_server(
    model: ModelPath, manager: ManagerDep, dry_run: DryRun = False, drain_seconds: DrainSeconds = None
) -> ServerView | Plan:
    """End the server; answers when the process is gone. A later request starts it again."""
    return await (manager.plan(model, "stop") if dry_run else manager.stop(model, drain_seconds=drain_seconds))


@router.post("/servers/{model}/restart", responses=errors(*LIFECYCLE))
async def restart_server(
    model: ModelPath, manager: ManagerDep, dry_run: DryRun = False, drain_seconds: DrainSeconds = None
) -> ServerView | Plan:
    """End the server and start it again; answers when it is ready."""
    return await (manager.plan(model, "restart") if dry_run else manager.restart(model, drain_seconds=drain_seconds))


@router.post("/servers/{model}/clear", responses=errors(*OF_A_MODEL))
async def clear_server(model: ModelPath, manager: ManagerDep) -> ServerView:
    """Lift a quarantine: the next request, or the wish that it runs, tries the server at once."""
    return await manager.clear(model)


@router.post("/swap", responses=errors(*LIFECYCLE))
async def swap(
    body: SwapRequest, manager: ManagerDep, dry_run: DryRun = False, drain_seconds: DrainSeconds = None
) -> ServerView | Plan:
    """Stop servers and start another in their place; if it does not start, what ran before runs again."""
    return await manager.swap(body, dry_run=dry_run, drain_seconds=drain_seconds)


@router.get(
    "/servers/{model}/logs",
    response_class=EventStream,
    responses=stream("Events `line`, one a line.", "event: line\ndata: main: server is listening\n\n", "line")
    | errors(*OF_A_MODEL),
)
async def follow_logs(
    model: ModelPath,
    manager: ManagerDep,
    tail: Annotated[int, Query(ge=0, le=10_000, description="Lines from before, at most.", examples=[100])] = 100,
    follow: Annotated[bool, Query(description="Go on with new lines as they come.")] = True,
) -> EventSourceResponse:
    """The server's log as server-sent events `line`, one a line."""
    log = manager.server(model).log

    async def events() -> AsyncIterator[ServerSentEvent]:
        if follow:
            async for line in log.follow(tail):
                yield ServerSentEvent(line, event="line")
        else:
            for line in log.tail(tail):
                yield ServerSentEvent(line, event="line")

    return EventStream(events(), ping=PING_SECONDS)


@router.get("/flags", responses=errors())
async def list_flags(manager: ManagerDep) -> list[FlagInfo]:
    """Every flag of the llama-server binary, and why some cannot be set here."""
    return list(manager.flags.flags)
