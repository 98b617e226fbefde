"""`/metrics`, and all that stands on it."""

import gzip

from fastapi import APIRouter, Request
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse

from orchestrator import __version__
from orchestrator.api.answers import ERROR_BODY, errors_as
from orchestrator.api.context import Context
from orchestrator.api.probes import REFUSED
from orchestrator.errors import PROBLEM_TYPE, Code
from orchestrator.servers import host_snapshots, server_statuses
from orchestrator.telemetry import Look, render
from orchestrator.telemetry.acceptance import AcceptedLengthCollector
from orchestrator.telemetry.bench import BenchCollector
from orchestrator.telemetry.build import BuildCollector
from orchestrator.telemetry.devices import DeviceCollector
from orchestrator.telemetry.flags import FlagsCollector
from orchestrator.telemetry.jobs import JobCollector
from orchestrator.telemetry.relay import RelayCollector
from orchestrator.telemetry.scrapes import ScrapeCollector
from orchestrator.telemetry.servers import ServerCollector
from orchestrator.telemetry.slots import SlotCollector
from orchestrator.telemetry.swaps import SwapCollector
from orchestrator.telemetry.timeline import TimelineCollector

router = APIRouter(tags=["probes"])
_PACKED_LEVEL = 1
# A model file that somebody has taken away is seen so late at most.
_REFRESH_SECONDS = 15.0
_CONTENT = {PROBLEM_TYPE: {"schema": ERROR_BODY}}
_PAGE = '# TYPE slipstream_server_up gauge\nslipstream_server_up{model="smollm2-135m"} 1.0\n'


class MetricsPage(PlainTextResponse):
    """Prometheus' text format."""


@router.get(
    "/metrics",
    response_class=MetricsPage,
    responses=errors_as(_CONTENT, (*REFUSED, Code.UNAUTHORIZED, Code.INTERNAL))
    | {200: {"description": "Prometheus' text format.", "content": {"text/plain": {"example": _PAGE}}}},
)
async def metrics(request: Request) -> MetricsPage:
    """Every server is asked once, in parallel; a sleeping model is not woken.

    OpenMetrics where `Accept` names it, packed where `Accept-Encoding` names gzip.
    """
    # Without a dependency: to solve one takes the event loop as long as all else here.
    context: Context = request.app.state.context
    manager, accept = context.manager, request.headers.get("accept", "")
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    await manager.refresh(within_seconds=_REFRESH_SECONDS)
    servers = manager.servers()
    found = _of_state(context)

    def page_of(look: Look) -> tuple[bytes, str]:
        page, content_type = render([*found, *_of_look(look)], accept)
        # To send what is not packed takes the event loop longer than all else.
        return gzip.compress(page, _PACKED_LEVEL) if is_packed else page, content_type

    page, content_type = await manager.scraper.made(servers, context.settings.scrape_timeout_seconds, page_of)
    headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
    return MetricsPage(page, headers=headers | ({"content-encoding": "gzip"} if is_packed else {}))


def _of_state(context: Context) -> list[Collector]:
    """What stands on the page of the orchestrator's own state.

    Made on the event loop: a collector takes copies of what it needs of state that lives there, quickly and asking
    nobody. Its `collect` is called in a thread.
    """
    statuses, jobs, scheduler = server_statuses(context.manager), context.jobs, context.manager.scheduler
    models = {status.model for status in statuses}
    context.requests.keep_only(models)
    scheduler.keep_only(models)
    return [
        BuildCollector(__version__, context.manager.flags.version),
        ServerCollector(statuses),
        SwapCollector(scheduler.swaps, {status.model: status.waiting for status in statuses}),
        TimelineCollector(scheduler.events.last),
        DeviceCollector(host_snapshots(context.manager)),
        JobCollector(jobs.live(), jobs.figures.ended, jobs.figures.downloaded_bytes),
        BenchCollector(context.benches.samples()),
        context.requests,
    ]


def _of_look(look: Look) -> list[Collector]:
    """What stands on the page of a look at the servers."""
    return [
        ScrapeCollector(look),
        SlotCollector(look),
        AcceptedLengthCollector(look),
        FlagsCollector(look),
        RelayCollector(look),
    ]
