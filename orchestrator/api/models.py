"""The catalogue, and the files of its models."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response, status

from orchestrator.api.answers import JOB, OF_A_MODEL, SOURCES, errors
from orchestrator.api.context import CataloguingDep, IdempotencyKey, ManagerDep, ModelPath, SupplyDep
from orchestrator.errors import Code
from orchestrator.schemas import AddRequest, AddView, JobView, ModelList, ModelSpec, ModelView
from orchestrator.servers import Manager

router = APIRouter(prefix="/api/models", tags=["models"])


@router.get("", responses=errors())
async def list_models(manager: ManagerDep) -> ModelList:
    """Every model file, with the state of its server; files that could not be loaded are problems."""
    await manager.refresh()
    return await models_of(manager)


async def models_of(manager: Manager) -> ModelList:
    """The same of the catalogue as it was last read."""
    catalog = manager.catalog
    views = await _views(manager, [spec for _, spec in sorted(catalog.models.items())])
    return ModelList(models=views, problems=catalog.problems)


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    responses=errors(*SOURCES, Code.CONFLICT, Code.INVALID_MODEL_FILE)
    | {200: {"model": AddView, "description": "The model file that would be written."}},
)
async def add_model(
    body: AddRequest,
    cataloguing: CataloguingDep,
    response: Response,
    dry_run: Annotated[bool, Query(description="Answer with the model file; write nothing.")] = False,
) -> AddView:
    """Write a model file from what a Hugging Face repository or an Ollama store holds, drafters included.

    Nothing is guessed between two files that fit: the error then lists the candidates with their roles. A request
    that is sent again is answered again: a model file that is there with exactly this content is no conflict.
    """
    view = await cataloguing.add(body, dry_run=dry_run)
    if dry_run:
        response.status_code = status.HTTP_200_OK
    return view


@router.get("/{name}", responses=errors(*OF_A_MODEL))
async def get_model(name: ModelPath, manager: ManagerDep) -> ModelView:
    """One model, by name or alias."""
    await manager.refresh()
    [view] = await _views(manager, [manager.catalog.get(name)])
    return view


@router.put("/{name}", responses=errors(Code.CONFLICT, Code.INVALID_MODEL_FILE, Code.INVALID_FLAG))
async def put_model(name: ModelPath, body: ModelSpec, manager: ManagerDep, cataloguing: CataloguingDep) -> ModelView:
    """Write a model file, or change the one there is; its comments stay. A running server keeps its settings."""
    [view] = await _views(manager, [await cataloguing.put(name, body)])
    return view


@router.delete("/{name}", status_code=status.HTTP_204_NO_CONTENT, responses=errors(*OF_A_MODEL, Code.CONFLICT))
async def delete_model(name: ModelPath, cataloguing: CataloguingDep) -> None:
    """Remove a model file whose server is not running. The files it needed stay until they are collected."""
    await cataloguing.delete(name)


@router.post("/{name}/pull", status_code=status.HTTP_202_ACCEPTED, responses=errors(*OF_A_MODEL, *JOB))
async def pull_model(
    name: ModelPath,
    supply: SupplyDep,
    idempotency_key: IdempotencyKey = None,
    update: Annotated[bool, Query(description="Look branches up again, and bring what has changed.")] = False,
) -> JobView:
    """Bring, verify and graft every file the model needs, as a job; a live one for the same files is joined."""
    return await supply.pull(name, update=update, idempotency_key=idempotency_key)


async def _views(manager: Manager, specs: list[ModelSpec]) -> tuple[ModelView, ...]:
    # Before the disk is looked at: a model may be gone after that.
    states = [manager.server(spec.name).state for spec in specs]
    missing = await asyncio.to_thread(lambda: [manager.files.missing(spec) for spec in specs])
    return tuple(
        ModelView(spec=spec, present=not names, missing=names, state=state)
        for spec, names, state in zip(specs, missing, states, strict=True)
    )
