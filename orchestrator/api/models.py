"""The catalogue."""

import asyncio

from fastapi import APIRouter

from orchestrator.api.context import ManagerDep
from orchestrator.schemas import ModelList, ModelSpec, ModelView
from orchestrator.servers import Manager

router = APIRouter(prefix="/api/models", tags=["models"])


@router.get("")
async def list_models(manager: ManagerDep) -> ModelList:
    """Every model file, with the state of its server; files that could not be loaded are problems."""
    await manager.refresh()
    views = [await _view(manager, spec) for _, spec in sorted(manager.catalog.models.items())]
    return ModelList(models=tuple(views), problems=manager.catalog.problems)


@router.get("/{name}")
async def get_model(name: str, manager: ManagerDep) -> ModelView:
    """One model, by name or alias."""
    await manager.refresh()
    return await _view(manager, manager.catalog.get(name))


async def _view(manager: Manager, spec: ModelSpec) -> ModelView:
    missing = await asyncio.to_thread(manager.files.missing, spec)
    return ModelView(spec=spec, present=not missing, state=manager.server(spec.name).state)
