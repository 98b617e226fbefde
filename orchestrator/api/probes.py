"""Probes."""

from fastapi import APIRouter

from orchestrator.api.answers import ERROR_BODY, errors_as
from orchestrator.api.context import ContextDep
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError
from orchestrator.schemas import Probe

router = APIRouter(tags=["probes"])
_CONTENT = {PROBLEM_TYPE: {"schema": ERROR_BODY}}
# Also of a probe: its Host or Origin can be a stranger's.
REFUSED = (Code.INVALID_REQUEST, Code.FORBIDDEN, Code.REQUEST_TOO_LARGE)


@router.get("/healthz", responses=errors_as(_CONTENT, REFUSED))
async def healthz() -> Probe:
    """Whether the process answers."""
    return Probe(status="ok")


@router.get("/readyz", responses=errors_as(_CONTENT, (*REFUSED, Code.SHUTTING_DOWN, Code.NO_ACCELERATOR)))
async def readyz(context: ContextDep) -> Probe:
    """Whether requests are taken as they are meant to be; models load when they are asked for.

    Without an accelerator that is expected it is not ready: requests are taken all the same, on the processor.
    """
    if not context.is_open:
        raise SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator is starting or shutting down")
    if context.missing:
        raise context.missing[0].error()
    return Probe(status="ready")
