"""How speculation fares now."""

from fastapi import APIRouter

from orchestrator.api.answers import errors
from orchestrator.api.context import Context, ContextDep
from orchestrator.schemas import SpeculationList
from orchestrator.servers import speculation

router = APIRouter(prefix="/api", tags=["servers"])


@router.get("/speculation", responses=errors())
async def show_speculation(context: ContextDep) -> SpeculationList:
    """Per model and slot: what was drafted and accepted, and how it goes since about ten seconds.

    Fit to be asked every second by several. Nothing is woken or started; callers within half a second, and a scrape of
    Prometheus meanwhile, share one look at the servers.
    """
    await context.manager.refresh()
    return await speculation_of(context)


async def speculation_of(context: Context) -> SpeculationList:
    """The same of the catalogue as it was last read."""
    manager = context.manager
    servers = manager.servers()
    newest, before = await manager.scraper.recent(servers, context.settings.scrape_timeout_seconds)
    names = [server.model for server in servers]
    return await manager.scraper.in_thread(lambda: speculation(names, newest, before))
