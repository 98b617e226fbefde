"""The control plane over a world with fake servers, and jobs of its own."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from orchestrator.api import Context, Trail, build_api
from orchestrator.jobs import Jobs
from orchestrator.servers import Benches, Cataloguing, Supply
from orchestrator.settings import Settings
from orchestrator.telemetry import Requests
from tests.unit.conftest import World


@pytest.fixture
def api(world: World, jobs: Jobs) -> FastAPI:
    supply, cataloguing = Supply(world.manager, jobs), Cataloguing(world.manager)
    settings = Settings(scrape_timeout_seconds=0.3)
    return build_api(
        Context(
            settings,
            world.manager,
            supply,
            cataloguing,
            jobs,
            world.client,
            Requests(),
            Trail(world.database),
            Benches(world.database, world.manager, world.wanted),
            is_open=True,
        )
    )


@pytest.fixture
async def http(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
