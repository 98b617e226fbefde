"""What drafting was measured to bring, kept by model."""

from fastapi import APIRouter, status

from orchestrator.api.answers import OF_A_MODEL, errors
from orchestrator.api.context import BenchesDep, ModelPath
from orchestrator.errors import Code
from orchestrator.schemas import BenchPut, BenchView

router = APIRouter(prefix="/api/models/{name}/bench", tags=["models"])


@router.get("", responses=errors(*OF_A_MODEL))
async def get_bench(name: ModelPath, benches: BenchesDep) -> BenchView:
    """The measurement that is kept for a model, and whether it still holds; `result` is null where there is none."""
    return await benches.view(name)


@router.put("", responses=errors(*OF_A_MODEL, Code.CONFLICT, Code.SERVER_STOPPED))
async def put_bench(name: ModelPath, body: BenchPut, benches: BenchesDep) -> BenchView:
    """Keep a measurement of drafting against plain decoding, in place of an earlier one.

    Sums are sent, figures are computed here. `slipstream bench-traffic MODEL --compare` measures and sends.
    """
    return await benches.keep(name, body)


@router.delete("", status_code=status.HTTP_204_NO_CONTENT, responses=errors(*OF_A_MODEL))
async def delete_bench(name: ModelPath, benches: BenchesDep) -> None:
    """Keep no measurement for a model any more."""
    await benches.forget(name)
