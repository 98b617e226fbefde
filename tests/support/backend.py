"""A server in this process, over real sockets, and a manager that hands out leases on it: each moment of an answer
can be held, cut or broken at will.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway import Gateway
from orchestrator.schemas import ModelSpec, ServerState
from orchestrator.servers import Lease
from orchestrator.telemetry import Requests

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT_BYTES = 1 << 20


async def answer_ok(request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion"})


class _Instance:
    """What a lease and the gateway look at of an instance."""

    child: Any

    def running_child(self) -> Any:
        return self.child

    def before_end(self, close: Any) -> None:
        """It has no end."""


@dataclass(eq=False)
class Backend:
    """Stands in for the manager. `handler` answers what reaches the server; `heard` is all that did.

    A lease is given while `gate` is set, else who asks waits; `refusal` is raised instead of giving one.
    """

    spec: ModelSpec
    url: str = ""
    handler: Handler = answer_ok
    heard: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    released: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: SlipstreamError | None = None
    dead: set[int] = field(default_factory=set)
    why: str = "it loads,\nsince 3 s"
    asked: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        names = {name: self.spec.name for name in (self.spec.name, *self.spec.aliases)}
        self.catalog = SimpleNamespace(names=names, models={self.spec.name: self.spec}, get=self._get)
        self.launch = SimpleNamespace(affinity=False, erases=False, spec_type="none", is_patched=True)
        goal = SimpleNamespace(launch=self.launch, host=SimpleNamespace(name="local"))
        child = SimpleNamespace(url=self.url, authorization="Bearer servers-own", is_dead=False)
        self.instance: Any = _Instance()
        vars(self.instance).update(goal=goal, slots=2, child=child, failure=None, is_ready=False)
        vars(self.instance).update(start_seconds=None, since_ready=0.0)

    def _get(self, name: str) -> ModelSpec:
        if name not in self.catalog.names:
            raise SlipstreamError(Code.MODEL_NOT_FOUND, f"there is no model {name!r}")
        return self.spec

    async def refresh(self) -> None:
        """Nothing changes."""

    def state_of(self, name: str) -> ServerState:
        return ServerState.READY

    def waits_for(self, name: str) -> str | None:
        return self.why

    async def lease(self, name: str, *, exemplar: Mapping[str, str] | None = None) -> Lease:
        self.asked += 1
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        server: Any = SimpleNamespace(model=self.spec.name, failure=None)
        lease = Lease(server, self.instance, self._on_release)
        self.leases.append(lease)
        self.instance.child.is_dead = len(self.leases) in self.dead
        return lease

    def _on_release(self, lease: Lease) -> None:
        self.released += 1

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((request.path_qs, await request.read()))
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        return await self.handler(request)


@dataclass(eq=False)
class GatewayBench:
    """A gateway over a backend, and its counters."""

    backend: Backend
    requests: Requests
    app: Gateway

    def outcomes(self) -> dict[str, float]:
        family = next(iter(self.requests.collect()))
        return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.value}


@asynccontextmanager
async def gateway_bench(
    *, keep_alive_seconds: float = 30.0, upstream_timeout_seconds: float = 30.0, **fields: Any
) -> AsyncIterator[GatewayBench]:
    """A gateway whose one model is `a`, with these fields."""
    spec = ModelSpec.model_validate({"name": "a", "source": {"path": "a.gguf"}} | fields)
    application = web.Application(client_max_size=LIMIT_BYTES)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    holder: list[Backend] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        return await holder[0].serve(request)

    application.router.add_route("*", "/{path:.*}", serve)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        backend = Backend(spec, f"http://{host}:{port}")
        holder.append(backend)
        manager: Any = backend
        requests = Requests()
        app = Gateway(manager, requests, LIMIT_BYTES, upstream_timeout_seconds, keep_alive_seconds)
        try:
            yield GatewayBench(backend, requests, app)
        finally:
            await app.close()
    finally:
        await runner.cleanup()
