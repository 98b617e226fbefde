"""What a client asks for: read once, before anything is done about it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Scope

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway.body import parse
from orchestrator.gateway.forms import model_of
from orchestrator.gateway.routes import ROUTES, Route, Work
from orchestrator.schemas import ModelSpec
from orchestrator.servers import Manager

_JSON = "application/json"
_LONG_BYTES = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """A request for a model. `request` is the parsed body, None for a form; `name` is how the client calls `spec`."""

    route: Route
    raw: bytes
    content_type: str
    request: dict[str, Any] | None
    name: str
    spec: ModelSpec

    @property
    def wants_stream(self) -> bool:
        """Whether an event stream is the answer."""
        generates = self.route.work is Work.GENERATE
        return generates and self.request is not None and self.request.get("stream") is True

    @property
    def fields(self) -> dict[str, Any]:
        """What the server is asked to generate by: the model's defaults, and what the client says."""
        return self.spec.defaults | (self.request or {})

    @property
    def is_single(self) -> bool:
        """Whether one sequence is the answer: a list of prompts or `n` gives several."""
        request = self.fields
        prompt = request.get("prompt")
        # A list of numbers, or of numbers and texts, is one prompt (tools/server/server-common.cpp).
        is_one = not isinstance(prompt, list) or len(prompt) == 1 or isinstance(next(iter(prompt), None), int)
        return is_one and all(request.get(name, 1) in (None, 1) for name in ("n", "n_cmpl"))


async def read_ask(manager: Manager, scope: Scope, raw: bytes) -> Ask:
    """Read a whole body; SlipstreamError invalid_request or model_not_found."""
    route = ROUTES[scope["path"]]
    request: dict[str, Any] | None = None
    content_type = _JSON
    if route.is_form:
        content_type = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        named: Any = await aside(raw, model_of, raw, content_type)
    else:
        request = await aside(raw, parse, raw)
        named = request.get("model")
    spec = await _model(manager, named)
    return Ask(route, raw, content_type, request, named or spec.name, spec)


async def aside(raw: bytes, work: Callable[..., T], *arguments: Any) -> T:
    """`work` on a request: a long one takes milliseconds, which other streams must not feel."""
    return work(*arguments) if len(raw) < _LONG_BYTES else await asyncio.to_thread(work, *arguments)


async def _model(manager: Manager, named: Any) -> ModelSpec:
    """The model with this name; without one the only model there is."""
    if named not in (None, "") and not isinstance(named, str):
        raise SlipstreamError(Code.INVALID_REQUEST, f"`model` must name a model, got {named!r:.80}")
    if not named or named not in manager.catalog.names:
        await manager.refresh()
    models = manager.catalog.models
    if named:
        return manager.catalog.get(named)
    if len(models) == 1:
        return next(iter(models.values()))
    known = ", ".join(sorted(models)) or "none"
    raise SlipstreamError(Code.INVALID_REQUEST, f"`model` must name one of the known models: {known}")
