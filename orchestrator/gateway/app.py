"""The gateway: a plain ASGI application that finds the model's server and passes bytes on.

The request is parsed once, for `model`; no chunk of a response is ever parsed. Upstream routes are an allow-list:
llama-server has others that show prompts or change its settings.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import httpx
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from orchestrator.errors import Code, SlipstreamError, internal_error
from orchestrator.gateway.body import prepared, read_body, wants_logprobs
from orchestrator.gateway.upstream import NotReached, Upstream
from orchestrator.servers import Manager
from orchestrator.telemetry import Requests

_ROUTES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
_MODELS = "/v1/models"
_END_NOTICED_SECONDS = 2.0
_LONG_BYTES = 1 << 20
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Gateway:
    """ASGI application for `/v1/*`."""

    def __init__(
        self,
        manager: Manager,
        client: httpx.AsyncClient,
        requests: Requests,
        max_request_bytes: int,
        upstream_timeout_seconds: float,
    ) -> None:
        self._manager = manager
        self._requests = requests
        self._max_request_bytes = max_request_bytes
        self._upstream = Upstream(client, upstream_timeout_seconds)
        self._can_pause_drafting = manager.flags.is_patched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error has OpenAI's shape."""
        begun = _Begun(send)
        try:
            if scope["path"] in _ROUTES:
                await self._infer(scope, receive, begun)
            elif scope["path"] == _MODELS or scope["path"].startswith(f"{_MODELS}/"):
                await (await self._models(scope))(scope, receive, begun)
            else:
                raise SlipstreamError(
                    Code.NOT_FOUND, f"there is no {scope['path'][:200]!r} here; there are {', '.join(sorted(_ROUTES))}"
                )
        except SlipstreamError as e:
            if begun.started:
                raise
            await _failure(e)(scope, receive, send)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if begun.started:
                raise
            await _failure(internal_error())(scope, receive, send)

    async def _models(self, scope: Scope) -> JSONResponse:
        _require_method(scope, "GET")
        await self._manager.refresh()
        catalog = self._manager.catalog
        name = scope["path"].removeprefix(_MODELS).lstrip("/")
        if name:
            return JSONResponse(_model_entry(name, catalog.get(name).name))
        entries = [_model_entry(name, model) for name, model in sorted(catalog.names.items())]
        return JSONResponse({"object": "list", "data": entries})

    async def _infer(self, scope: Scope, receive: Receive, send: "_Begun") -> None:
        _require_method(scope, "POST")
        raw = await read_body(receive, self._max_request_bytes)
        if raw is None:
            return
        request = await _parse(raw)
        model = _model_of(request)
        if model not in self._manager.catalog.names:
            await self._manager.refresh()
        spec = self._manager.catalog.get(model)

        if wants_logprobs(request) and spec.speculation.type != "none" and not self._can_pause_drafting:
            raise SlipstreamError(
                Code.INVALID_REQUEST,
                f"{spec.name!r} drafts, and this llama-server gives no real logprobs while it does",
                hint="build the patched server with `make server`, or ask without logprobs",
            )
        body = await _aside(raw, prepared, raw, request, spec.defaults)
        outcome = "server_error"
        try:
            outcome = await _unless_gone(self._answer(scope, model, body, send), receive)
        except SlipstreamError as e:
            outcome = "client_error" if e.status < 500 else "server_error"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._requests.count(spec.name, outcome)

    async def _answer(self, scope: Scope, model: str, body: bytes, send: "_Begun") -> str:
        server = await self._manager.ensure(model)
        try:
            return await self._upstream.forward(scope, server, body, send)
        except NotReached:
            # It died, and its end is noticed within this time; then the next one is started.
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_NOTICED_SECONDS):
                    await server.until_end_noticed()
        try:
            return await self._upstream.forward(scope, await self._manager.ensure(model), body, send)
        except NotReached as e:
            message = f"the server of {server.model!r} takes no connection"
            raise SlipstreamError(Code.UPSTREAM_FAILED, message, retry_after_seconds=1) from e


class _Begun:
    """`send` that knows whether the response has begun; after that no error body can be sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        self.started = True
        await self._send(message)


async def _unless_gone(work: Any, receive: Receive) -> str:
    """Run `work`; when the client leaves first, cancel it at once, which closes the upstream connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return str(task.result())
        return "cancelled"
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _parse(raw: bytes) -> dict[str, Any]:
    try:
        value = await _aside(raw, json.loads, raw)
    except (ValueError, RecursionError) as e:
        raise SlipstreamError(Code.INVALID_REQUEST, f"the request body is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise SlipstreamError(Code.INVALID_REQUEST, f"expected a JSON object, got {type(value).__name__}")
    return value


async def _aside(raw: bytes, work: Callable[..., T], *arguments: Any) -> T:
    """`work` on a request: a long one takes milliseconds, which other streams must not feel."""
    return work(*arguments) if len(raw) < _LONG_BYTES else await asyncio.to_thread(work, *arguments)


def _failure(error: SlipstreamError) -> JSONResponse:
    return JSONResponse(error.openai(), error.status, error.headers)


def _model_of(request: dict[str, Any]) -> str:
    model = request.get("model")
    if not isinstance(model, str) or not model:
        raise SlipstreamError(Code.INVALID_REQUEST, f"`model` must name a model, got {model!r:.80}")
    return model


def _require_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        message = f"{scope['path']} takes {method}, got {scope['method']}"
        raise SlipstreamError(Code.METHOD_NOT_ALLOWED, message, headers={"allow": method})


def _model_entry(name: str, model: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "slipstream", "root": model}
