"""One scrape of every server that runs, in parallel, each with a deadline."""

import asyncio

import httpx

from orchestrator.errors import SlipstreamError
from orchestrator.servers.manager import Manager
from orchestrator.servers.server import Server
from orchestrator.telemetry import ServerSnapshot, parse_child_metrics


async def snapshots(manager: Manager, client: httpx.AsyncClient, timeout_seconds: float) -> list[ServerSnapshot]:
    """A snapshot of every server; one that does not answer in time has no families in it."""
    return list(await asyncio.gather(*(_snapshot(s, client, timeout_seconds) for s in manager.servers())))


async def _snapshot(server: Server, client: httpx.AsyncClient, timeout_seconds: float) -> ServerSnapshot:
    families = parse_child_metrics("")
    child, launch = server.child, server.launch
    if child is not None and server.is_ready:
        headers = {"authorization": child.authorization}
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await client.get(f"{child.url}/metrics", headers=headers)
            families = parse_child_metrics(response.raise_for_status().text)
        except (TimeoutError, httpx.HTTPError, SlipstreamError):
            pass  # seen in the page as missing series of a server that is up
    return ServerSnapshot(
        model=server.model,
        state=server.state,
        is_ready=server.is_ready,
        spec_type=launch.spec_type if launch else "none",
        starts=server.starts,
        start_seconds=server.start_seconds,
        families=families,
    )
