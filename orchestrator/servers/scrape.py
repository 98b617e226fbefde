"""One scrape of every server that runs, in parallel, each with a deadline."""

import asyncio

import httpx

from orchestrator.servers.manager import Manager
from orchestrator.servers.readiness import read_metrics
from orchestrator.servers.server import Server
from orchestrator.telemetry import ServerSnapshot


async def snapshots(manager: Manager, client: httpx.AsyncClient, timeout_seconds: float) -> list[ServerSnapshot]:
    """A snapshot of every server; one that does not answer in time has no families in it."""
    return list(await asyncio.gather(*(_snapshot(s, client, timeout_seconds) for s in manager.servers())))


async def _snapshot(server: Server, client: httpx.AsyncClient, timeout_seconds: float) -> ServerSnapshot:
    child, launch, warm_up = server.child, server.launch, server.warm_up_metrics
    families = await read_metrics(client, child, timeout_seconds) if child is not None and server.is_ready else ()
    return ServerSnapshot(
        model=server.model,
        state=server.state,
        is_ready=server.is_ready,
        spec_type=launch.spec_type if launch else "none",
        starts=server.starts,
        start_seconds=server.start_seconds,
        families=families,
        warm_up=warm_up,
    )
