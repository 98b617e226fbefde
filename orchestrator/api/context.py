"""What the routers work with."""

from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Header, Path, Query, Request

from orchestrator.api.trail import Trail
from orchestrator.jobs import Jobs
from orchestrator.servers import Benches, Cataloguing, Manager, Missing, Supply
from orchestrator.settings import Settings
from orchestrator.telemetry import Requests


@dataclass
class Context:
    """The parts of the running application. `is_open` is true between start and shutdown.

    `missing` are accelerators that are expected and not there: requests are taken, but nobody should send any here.
    """

    settings: Settings
    manager: Manager
    supply: Supply
    cataloguing: Cataloguing
    jobs: Jobs
    client: httpx.AsyncClient
    requests: Requests
    audit: Trail
    benches: Benches
    is_open: bool = False
    missing: tuple[Missing, ...] = ()


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextDep = Annotated[Context, Depends(_context)]


async def _manager(context: ContextDep) -> Manager:
    return context.manager


ManagerDep = Annotated[Manager, Depends(_manager)]


async def _supply(context: ContextDep) -> Supply:
    return context.supply


async def _jobs(context: ContextDep) -> Jobs:
    return context.jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]


async def _audit(context: ContextDep) -> Trail:
    return context.audit


AuditDep = Annotated[Trail, Depends(_audit)]


async def _benches(context: ContextDep) -> Benches:
    return context.benches


BenchesDep = Annotated[Benches, Depends(_benches)]


async def _cataloguing(context: ContextDep) -> Cataloguing:
    return context.cataloguing


CataloguingDep = Annotated[Cataloguing, Depends(_cataloguing)]
SupplyDep = Annotated[Supply, Depends(_supply)]
ModelPath = Annotated[str, Path(description="Name or alias of a model.", examples=["smollm2-135m"])]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="A repeated request with the same key answers with the job of the first one, ended or not.",
        examples=["3f0c9a52-pull"],
    ),
]
DrainSeconds = Annotated[
    float | None,
    Query(
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Time that running answers get to end before their server is ended, seconds; "
        "absent: SLIPSTREAM_DRAIN_TIMEOUT_SECONDS.",
        examples=[60.0],
    ),
]
