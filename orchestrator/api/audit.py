"""The audit log."""

from typing import Annotated

from fastapi import APIRouter, Query

from orchestrator.api.answers import errors
from orchestrator.api.context import AuditDep
from orchestrator.schemas import AuditList

router = APIRouter(prefix="/api", tags=["audit"])


@router.get("/audit", responses=errors())
async def list_audit(
    audit: AuditDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries, at most.", examples=[100])] = 100,
    before: Annotated[
        int | None,
        Query(ge=1, le=(1 << 63) - 1, description="Only entries with a smaller number than this.", examples=[42]),
    ] = None,
) -> AuditList:
    """Who called what that could change something, and how it was answered; the newest first.

    An entry is written before anything is done. One without a status was not answered: it is under way, or the
    orchestrator ended before. Calls that were refused for want of a key are counted by minute and address.
    """
    return await audit.page(limit, before)
