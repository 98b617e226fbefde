"""Probes and Prometheus."""

from fastapi import APIRouter, Response

from orchestrator import __version__
from orchestrator.api.context import ContextDep
from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers import snapshots
from orchestrator.telemetry import CONTENT_TYPE, render

router = APIRouter(tags=["probes"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(context: ContextDep) -> dict[str, str]:
    """Whether requests are taken; models load when they are asked for."""
    if not context.is_open:
        raise SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator is starting or shutting down")
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(context: ContextDep) -> Response:
    """Every server is asked once, in parallel; a sleeping model is not woken."""
    servers = await snapshots(context.manager, context.client, context.settings.scrape_timeout_seconds)
    page = render(servers, context.requests, __version__, context.manager.flags.version)
    return Response(page, media_type=CONTENT_TYPE)
