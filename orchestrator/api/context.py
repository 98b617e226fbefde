"""What the routers work with."""

from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Header, Path, Request

from orchestrator.jobs import Jobs
from orchestrator.servers import Cataloguing, Manager, Supply
from orchestrator.settings import Settings
from orchestrator.telemetry import Requests


@dataclass
class Context:
    """The parts of the running application. `is_open` is true between start and shutdown."""

    settings: Settings
    manager: Manager
    supply: Supply
    cataloguing: Cataloguing
    jobs: Jobs
    client: httpx.AsyncClient
    requests: Requests
    is_open: bool = False


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextDep = Annotated[Context, Depends(_context)]


def _manager(context: ContextDep) -> Manager:
    return context.manager


ManagerDep = Annotated[Manager, Depends(_manager)]


def _supply(context: ContextDep) -> Supply:
    return context.supply


def _jobs(context: ContextDep) -> Jobs:
    return context.jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]


def _cataloguing(context: ContextDep) -> Cataloguing:
    return context.cataloguing


CataloguingDep = Annotated[Cataloguing, Depends(_cataloguing)]
SupplyDep = Annotated[Supply, Depends(_supply)]
ModelPath = Annotated[str, Path(description="Name or alias of a model.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="A repeated request with the same key answers with the job of the first one, ended or not.",
    ),
]
