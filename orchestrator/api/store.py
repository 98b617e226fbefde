"""The store, grafts and GGUF headers."""

from typing import Annotated

from fastapi import APIRouter, Query, status

from orchestrator.api.answers import JOB, OF_A_MODEL, SOURCES, errors
from orchestrator.api.context import IdempotencyKey, SupplyDep
from orchestrator.errors import Code
from orchestrator.schemas import (
    GcView,
    GraftPlan,
    GraftRequest,
    Inspection,
    InspectRequest,
    JobView,
    OllamaView,
    StoreView,
    VerifyRequest,
)

router = APIRouter(prefix="/api", tags=["store"])


@router.get("/store", responses=errors())
async def get_store(supply: SupplyDep) -> StoreView:
    """Every file of the store by content: where it came from, under which names it lies, who needs it."""
    return await supply.inventory()


@router.post("/store/verify", status_code=status.HTTP_202_ACCEPTED, responses=errors(*OF_A_MODEL, *JOB))
async def verify_store(body: VerifyRequest, supply: SupplyDep, idempotency_key: IdempotencyKey = None) -> JobView:
    """Compare files with their digests again, as a job; what is wrong is put aside and has to be brought anew."""
    return await supply.verify(body, idempotency_key=idempotency_key)


@router.post("/store/gc", responses=errors(Code.CONFLICT))
async def collect_garbage(
    supply: SupplyDep,
    dry_run: Annotated[bool, Query(description="Say what would be removed; touch nothing.")] = False,
) -> GcView:
    """Remove what neither a model file, nor a graft in use, nor a running server refers to."""
    return await supply.collect(dry_run=dry_run)


@router.get("/ollama", responses=errors())
async def get_ollama(supply: SupplyDep) -> OllamaView:
    """The models that Ollama has on this machine, and which llama.cpp its runner reports: it is run to say so."""
    return await supply.ollama()


@router.post("/grafts", status_code=status.HTTP_202_ACCEPTED, responses=errors(*JOB, Code.GRAFT_REFUSED))
async def make_graft(body: GraftRequest, supply: SupplyDep, idempotency_key: IdempotencyKey = None) -> JobView:
    """Bring base and donor and graft, as a job. A model file with `graft:` of the same two uses the result."""
    return await supply.graft(body, idempotency_key=idempotency_key)


@router.post("/grafts/plan", responses=errors(*SOURCES, Code.GRAFT_REFUSED, Code.MODEL_INCOMPLETE))
async def plan_graft(body: GraftRequest, supply: SupplyDep) -> GraftPlan:
    """Every tensor and key that a graft would add or change; both files have to be on disk."""
    return await supply.plan_graft(body)


@router.post("/gguf/inspect", responses=errors(*SOURCES))
async def inspect_gguf(body: InspectRequest, supply: SupplyDep) -> Inspection:
    """What a header says: architecture, head, tokenizer, quants, memory, problems. A remote file is not fetched."""
    return await supply.inspect(body)
