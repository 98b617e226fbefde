"""The FastAPI application of the control plane."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from orchestrator import __version__
from orchestrator.api import jobs, models, probes, servers, store
from orchestrator.api.body_limit import BodyLimit
from orchestrator.api.context import Context
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError, internal_error
from orchestrator.schemas.base import ErrorBody

_log = logging.getLogger(__name__)
_PROBLEM_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What was wrong (RFC 9457).",
        "content": {PROBLEM_TYPE: {"schema": ErrorBody.model_json_schema()}},
    }
}
# Of a request that is wrong in every field, the first ones tell enough.
_TOLD_PROBLEMS = 20


def build_api(context: Context) -> FastAPI:
    """Routers and error shapes; `context` is what they work with."""
    api = FastAPI(
        title="Slipstream", version=__version__, openapi_url="/api/openapi.json", docs_url=None, redoc_url=None
    )
    api.state.context = context
    api.add_middleware(BodyLimit)
    for router in (models.router, servers.router, store.router, jobs.router):
        api.include_router(router, responses=_PROBLEM_RESPONSE)
    api.include_router(probes.router)
    api.add_exception_handler(SlipstreamError, _on_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(HTTPException, _on_http)
    api.add_exception_handler(Exception, _on_bug)
    return api


def _respond(error: SlipstreamError) -> JSONResponse:
    return JSONResponse(error.problem(), error.status, error.headers, media_type=PROBLEM_TYPE)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SlipstreamError)
    return _respond(error)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = [{"where": ".".join(map(str, e["loc"])), "message": e["msg"]} for e in error.errors()[:_TOLD_PROBLEMS]]
    message = "; ".join(f"{f['where']}: {f['message']}" for f in found)
    return _respond(SlipstreamError(Code.INVALID_REQUEST, message, details={"problems": found}))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}"
        return _respond(SlipstreamError(Code.METHOD_NOT_ALLOWED, message, headers=dict(error.headers or {})))
    code = Code.NOT_FOUND if error.status_code == 404 else Code.INVALID_REQUEST
    return _respond(SlipstreamError(code, f"{request.method} {request.url.path}: {error.detail}"))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _respond(internal_error())
