"""What the routers work with."""

from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Request

from orchestrator.servers import Manager
from orchestrator.settings import Settings
from orchestrator.telemetry import Requests


@dataclass
class Context:
    """The parts of the running application. `is_open` is true between start and shutdown."""

    settings: Settings
    manager: Manager
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
