"""The FastAPI application of the control plane."""

import logging
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from orchestrator import __version__
from orchestrator.api import audit, bench, events, jobs, metrics, models, probes, servers, slots, speculation, store
from orchestrator.api.body_limit import BodyLimit
from orchestrator.api.context import Context
from orchestrator.api.document import document_of, operations
from orchestrator.api.trail import Audited
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError, internal_error

_log = logging.getLogger(__name__)
# Of a request that is wrong in every field, the first ones tell enough.
_TOLD_PROBLEMS = 20


def build_api(context: Context) -> FastAPI:
    """Routers and error shapes; `context` is what they work with."""
    api = FastAPI(
        title="Slipstream",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        # A path has one spelling; a redirect would be one more answer to every route.
        redirect_slashes=False,
    )
    api.state.context = context
    api.add_middleware(BodyLimit)
    # Around the limit: what is refused for its size is in the audit log too.
    api.add_middleware(Audited, trail=context.audit)
    # The first in order is the first that is looked at for a request.
    for part in (metrics, models, bench, servers, events, slots, speculation, store, jobs, audit, probes):
        api.include_router(part.router)
    api.openapi = partial(document_of, api)  # type: ignore[method-assign]
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
        return _respond(SlipstreamError(Code.METHOD_NOT_ALLOWED, message, headers={"allow": _allowed(request)}))
    code = Code.NOT_FOUND if error.status_code == 404 else Code.INVALID_REQUEST
    return _respond(SlipstreamError(code, f"{request.method} {request.url.path}: {error.detail}"))


def _allowed(request: Request) -> str:
    """Every method that some route takes at this path; the framework's own answer knows the first route only."""
    here = [m for path, m, _ in operations(request.app.openapi()) if compile_path(path)[0].match(request.url.path)]
    return ", ".join(sorted(method.upper() for method in here))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _respond(internal_error())
