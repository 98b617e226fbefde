"""Probes and Prometheus."""

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from orchestrator import __version__
from orchestrator.api.answers import ERROR_BODY, errors_as
from orchestrator.api.context import ContextDep
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError
from orchestrator.schemas import Probe
from orchestrator.servers import snapshots
from orchestrator.telemetry import CONTENT_TYPE, render

router = APIRouter(tags=["probes"])
_CONTENT = {PROBLEM_TYPE: {"schema": ERROR_BODY}}
# Also of a probe: its Host or Origin can be a stranger's.
_REFUSED = (Code.INVALID_REQUEST, Code.FORBIDDEN, Code.REQUEST_TOO_LARGE)
_PAGE = '# TYPE slipstream_server_up gauge\nslipstream_server_up{model="smollm2-135m"} 1.0\n'


class MetricsPage(PlainTextResponse):
    """Prometheus' text format."""


@router.get("/healthz", responses=errors_as(_CONTENT, _REFUSED))
async def healthz() -> Probe:
    """Whether the process answers."""
    return Probe(status="ok")


@router.get("/readyz", responses=errors_as(_CONTENT, (*_REFUSED, Code.SHUTTING_DOWN)))
async def readyz(context: ContextDep) -> Probe:
    """Whether requests are taken; models load when they are asked for."""
    if not context.is_open:
        raise SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator is starting or shutting down")
    return Probe(status="ready")


@router.get(
    "/metrics",
    response_class=MetricsPage,
    responses=errors_as(_CONTENT, (*_REFUSED, Code.UNAUTHORIZED, Code.INTERNAL))
    | {200: {"description": "Prometheus' text format.", "content": {"text/plain": {"example": _PAGE}}}},
)
async def metrics(context: ContextDep) -> MetricsPage:
    """Every server is asked once, in parallel; a sleeping model is not woken."""
    servers = await snapshots(context.manager, context.client, context.settings.scrape_timeout_seconds)
    page = render(servers, context.requests, __version__, context.manager.flags.version)
    return MetricsPage(page, media_type=CONTENT_TYPE)
