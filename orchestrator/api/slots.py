"""Slots of running servers, without anything that a client has sent."""

from typing import Annotated

import httpx
from fastapi import APIRouter, Query
from pydantic import TypeAdapter, ValidationError

from orchestrator.api.answers import OF_A_MODEL, errors
from orchestrator.api.context import Context, ContextDep, ModelPath
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import SlotList, SlotView
from orchestrator.servers import own_headers

router = APIRouter(tags=["servers"])

_TIMEOUT_SECONDS = 5.0
_SLOTS = TypeAdapter(tuple[SlotView, ...])
_ERRORS = errors(*OF_A_MODEL, Code.SERVER_STOPPED, Code.UPSTREAM_FAILED, Code.UPSTREAM_TIMEOUT)


@router.get("/api/servers/{model}/slots", responses=_ERRORS)
async def list_slots(model: ModelPath, context: ContextDep) -> SlotList:
    """The slots of a running server: how far each is, never a prompt or an answer. It is not started for this."""
    await context.manager.refresh()
    return SlotList(model=context.manager.server(model).model, slots=await _slots(context, model))


@router.get("/slots", responses=_ERRORS)
async def list_slots_bare(
    context: ContextDep,
    model: Annotated[str, Query(description="Name or alias of a model.", examples=["smollm2-135m"])],
) -> tuple[SlotView, ...]:
    """The same in llama-server's own place and shape, for tools that know it there."""
    await context.manager.refresh()
    return await _slots(context, model)


async def _slots(context: Context, name: str) -> tuple[SlotView, ...]:
    server = context.manager.server(name)
    serving = server.serving
    if serving is None:
        raise SlipstreamError(
            Code.SERVER_STOPPED, f"the server of {server.model!r} is {server.state}: it has no slots to show"
        )
    child = serving.running_child()
    try:
        response = await context.client.get(f"{child.url}/slots", headers=own_headers(child), timeout=_TIMEOUT_SECONDS)
    except httpx.TimeoutException as e:
        raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"the server of {server.model!r} did not tell its slots") from e
    except httpx.HTTPError as e:
        raise SlipstreamError(Code.UPSTREAM_FAILED, f"the server of {server.model!r} broke off") from e
    if response.status_code != httpx.codes.OK:
        said = f"the server of {server.model!r} answered {response.status_code} when it was asked for its slots"
        raise SlipstreamError(Code.UPSTREAM_FAILED, said, hint="it has none to show with the flag `no-slots`")
    try:
        # The allow-list: what the schema does not name is left out, prompts and parameters among it.
        return _SLOTS.validate_json(response.content)
    except ValidationError as e:
        said = f"the server of {server.model!r} told its slots in another shape than this version knows"
        raise SlipstreamError(Code.UPSTREAM_FAILED, said) from e
