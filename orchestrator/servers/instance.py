"""One llama-server from its start to its end: it loads, warms up, is ready, drains, stops.

Its life is one task. Others ask it to drain or to stop; nobody cancels it, so that no half-started or half-stopped
server is ever forgotten.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure, InstanceView, ServerState
from orchestrator.servers.drivers.base import HOST, Child, Device, Found, Order
from orchestrator.servers.hosts import Goal
from orchestrator.servers.lease import Lease
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.memory import measure, until_back
from orchestrator.servers.readiness import NotReady, warm_up
from orchestrator.servers.scheduling import Needs, Phase
from orchestrator.servers.scrape import Scraper

_EXIT_TIMEOUT_SECONDS = 1.0
# What answers get to write the error that ends them before their server goes.
_CUT_TIMEOUT_SECONDS = 1.0
_MEMORY_TIMEOUT_SECONDS = 20.0
_STOP_ATTEMPTS = 6
_STATES = {Phase.READY: ServerState.READY, Phase.DRAINING: ServerState.DRAINING, Phase.STOPPING: ServerState.STOPPING}
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runtime:
    """What every server shares."""

    client: httpx.AsyncClient
    start_timeout_seconds: float
    stop_timeout_seconds: float
    log_lines: int
    idle_seconds: float | None = None
    max_waiting_requests: int = 1000
    wait_timeout_seconds: float = 600.0
    drain_timeout_seconds: float = 60.0
    scraper: Scraper = field(default_factory=Scraper)


class Instance:
    """A llama-server of one model, as one launch, on one host. `on_change` is called after each change of phase."""

    def __init__(
        self,
        number: int,
        goal: Goal,
        generation: int,
        log: LogBuffer,
        runtime: Runtime,
        why: str,
        on_change: Callable[["Instance"], None],
    ) -> None:
        self.number = number
        self.goal = goal
        self.generation = generation
        self.log = log
        self.phase: Phase | None = Phase.LOADING
        self.why = why
        self.child: Child | None = None
        self.failure: Failure | None = None
        self.error: SlipstreamError | None = None
        self.start_seconds: float | None = None
        self.was_ready = False
        self.is_noted = False
        self.since_ready = 0.0
        self.slots = 0
        self.measured: dict[str, int] = {}
        self.changes: tuple[str, ...] = ()
        self.leases: set[Lease] = set()
        self.told: ServerState | None = None
        self.drain_until = 0.0
        self._runtime = runtime
        self._on_change = on_change
        self._is_warming = False
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._stopping = asyncio.Event()
        self._released = asyncio.Event()
        self.since, self.since_unix = time.monotonic(), time.time()
        self.asked_since = self.since
        self.idle_since = self.since
        self._last_sign = self.since
        self.life: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.goal.launch.spec.name

    @property
    def version(self) -> str:
        """What it runs as: see Goal.version."""
        return self.goal.version(self.generation)

    @property
    def needs(self) -> Needs:
        """Bytes by device set aside for it: planned, then measured, unless the model file says how much."""
        return self.goal.needs if self.goal.launch.spec.place.memory else (self.measured or self.goal.needs)

    @property
    def state(self) -> ServerState:
        """Where it is in its life, for clients."""
        if self.phase is Phase.LOADING:
            return ServerState.WARMING if self._is_warming else ServerState.LOADING
        return ServerState.STOPPED if self.phase is None else _STATES[self.phase]

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.phase is Phase.READY

    def running_child(self) -> Child:
        """Its child; SlipstreamError server_stopped when there is none."""
        if self.child is None:
            raise SlipstreamError(Code.SERVER_STOPPED, f"the server of {self.model!r} has ended", retry_after_seconds=1)
        return self.child

    def view(self) -> InstanceView:
        """What clients may see of it."""
        return InstanceView(
            id=self.number,
            state=self.state,
            host=self.goal.host.name,
            pid=self.child.pid if self.child else None,
            container=self.child.container if self.child else None,
            running=len(self.leases),
            needs_bytes=dict(self.needs),
            since=self.since_unix,
            why=self.why,
        )

    def begin(self, adopted: Found | None = None) -> None:
        """Begin its life, with a server that runs already if one was found."""
        self.life = asyncio.create_task(self._live(adopted), name=f"life of {self.model} {self.number}")

    def before_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called before the server is told to end: connections to it hold its end up."""
        self._closers.append(close)

    def lease(self, lease: Lease) -> None:
        """A request runs on it."""
        self.leases.add(lease)

    def release(self, lease: Lease) -> None:
        """That request has ended."""
        self.leases.discard(lease)
        if not self.leases:
            self.idle_since = time.monotonic()
            self._released.set()

    def drain(self, until: float, why: str) -> None:
        """Take no more requests; `until` is when those that run are ended."""
        if self.phase is Phase.READY:
            self.drain_until = until
            self._enter(Phase.DRAINING, why)

    def stop(self, why: str, error: SlipstreamError | None = None) -> None:
        """End it. Answers that still run end with `error`."""
        if self._stopping.is_set():
            return
        drained = SlipstreamError(
            Code.DRAINED,
            f"the server of {self.model!r} had to end before this answer did: {why}",
            retry_after_seconds=1,
        )
        for lease in self.leases:
            lease.end(error or drained)
        if self.phase is not None:
            self._enter(Phase.STOPPING, why)
        self._stopping.set()

    def kill(self) -> None:
        """End its process at once, without waiting."""
        if self.child is not None:
            self.child.kill()

    async def _live(self, adopted: Found | None) -> None:
        try:
            await self._load(adopted)
            if not self._stopping.is_set():
                self._enter(Phase.READY, "taken over from before the restart" if adopted else "loaded and warmed up")
                await self._serve()
        except Exception as e:
            if not self._stopping.is_set():
                self.error = e if isinstance(e, SlipstreamError) else self._internal(e)
                self.failure = self.failure or Failure(reason=str(self.error.code), message=self.error.message)
        finally:
            await self._end()

    async def _load(self, adopted: Found | None) -> None:
        host = self.goal.host
        host.moves += 1
        moves, is_alone = host.moves, host.loading == 0
        host.loading += 1
        try:
            began = time.monotonic()
            before = await self._devices()
            child = await self._until_warm(adopted)
            if child is None or adopted is not None:
                return
            self.start_seconds = time.monotonic() - began
            # Where another one came or went meanwhile, the change of free memory tells nothing about this one.
            if not (is_alone and host.moves == moves):
                before = ()
            if measured := await measure(self._devices, child, before):
                self.measured = dict(self.goal.needs) | measured
        finally:
            host.loading -= 1

    async def _until_warm(self, adopted: Found | None) -> Child | None:
        """Its child, once it has loaded and warmed up; None when somebody has told it to stop before."""
        goal, driver = self.goal, self.goal.host.driver
        first_line = self.log.count
        order = Order(self.model, goal.launch, self.log, self._sign)
        self._sign()
        self.child = child = await (driver.start(order) if adopted is None else driver.adopt(adopted, order))
        self._on_change(self)
        await self._while_alive(child, self._listens(child))
        if self._stopping.is_set():
            return None
        self._is_warming = True
        self._on_change(self)
        client, limit = self._runtime.client, self._runtime.start_timeout_seconds
        said = self.log.tail(self.log.count, after=first_line)
        warming = warm_up(client, child, goal.launch, limit, goal.devices, said, is_known=goal.is_known)
        self.slots = await self._while_alive(child, warming) or 0
        if self._stopping.is_set():
            return None
        await self._runtime.scraper.begin(self.number, child, goal.launch)
        self.was_ready = True
        return child

    async def _serve(self) -> None:
        """Until it is told to stop, or ends by itself."""
        child = self.running_child()
        await _first(self._stopping.wait(), child.exited.wait())
        if child.exited.is_set() and not self._stopping.is_set():
            self.failure = child.failure()

    async def _end(self) -> None:
        """When this returns nothing of it is left, and its memory is back as far as can be seen."""
        child, host = self.child, self.goal.host
        died = self.failure is not None
        if self.phase is not Phase.STOPPING:
            self._enter(Phase.STOPPING, self.failure.message if self.failure else "it did not start")
        if self.leases and not died:
            self._released.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CUT_TIMEOUT_SECONDS):
                    await self._released.wait()
        held = {name: size for name, size in self.needs.items() if name != HOST}
        try:
            if self.was_ready:
                await self._runtime.scraper.end(self.number, is_dead=child is None or child.is_dead)
            for close in self._closers:
                await close()
            before = await self._devices() if held else ()
            if child is not None:
                await self._stopped(child)
            if held and child is not None:
                await until_back(self._devices, before, held, lambda: host.loading == 0, _MEMORY_TIMEOUT_SECONDS)
        except Exception as e:
            _log.error("the server of %r could not be ended cleanly", self.model, exc_info=e)
        host.moves += 1
        self.child = None
        self.phase = None
        self._on_change(self)

    async def _stopped(self, child: Child) -> None:
        """Until it is gone. One that even KILL does not end at once, as a driver may hold it, keeps its memory."""
        for attempt in range(_STOP_ATTEMPTS):
            try:
                return await child.stop(self._runtime.stop_timeout_seconds)
            except TimeoutError:
                _log.error("the server of %r has outlived KILL %d times", self.model, attempt + 1)

    async def _devices(self) -> tuple[Device, ...]:
        """What the accelerators have free; nothing where the host has none: asking costs a process."""
        host = self.goal.host
        return await host.driver.devices(self.goal.launch.image) if host.accelerators else ()

    async def _listens(self, child: Child) -> None:
        """Until the process listens. Every log line is a sign of progress and moves the deadline."""
        limit = self._runtime.start_timeout_seconds
        while not child.listening.is_set():
            left = self._last_sign + limit - time.monotonic()
            if left <= 0:
                raise NotReady("start_timeout", f"llama-server showed no progress for {limit:g} s while loading")
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await child.listening.wait()

    async def _while_alive(self, child: Child, work: Coroutine[Any, Any, T]) -> T | None:
        """`work`, unless the process ends first or somebody wants it to; then None."""
        task = asyncio.ensure_future(work)
        try:
            await _first(task, child.exited.wait(), self._stopping.wait())
            if child.exited.is_set() and not self._stopping.is_set():
                self.failure = child.failure()
                raise self._start_failed()
            return task.result() if task.done() else None
        except NotReady as e:
            if e.may_be_dead:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                        await child.exited.wait()
            said = Failure(reason=e.reason, message=str(e), log_tail=child.tail())
            self.failure = child.failure() if child.exited.is_set() else said
            raise self._start_failed() from e
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()

    def _start_failed(self) -> SlipstreamError:
        assert self.failure is not None
        return SlipstreamError(
            Code.SERVER_START_FAILED,
            f"the server of {self.model!r} did not start: {self.failure.message}",
            details={"reason": self.failure.reason, "log_tail": list(self.failure.log_tail)},
        )

    def _internal(self, error: Exception) -> SlipstreamError:
        _log.error("the server of %r could not be started", self.model, exc_info=error)
        what = error.strerror if isinstance(error, OSError) else type(error).__name__
        self.failure = Failure(reason="internal", message=f"it could not be started: {what}")
        return SlipstreamError(Code.INTERNAL, f"the server of {self.model!r} could not be started: {what}")

    def _enter(self, phase: Phase, why: str) -> None:
        self.phase, self.why = phase, why
        self.since, self.since_unix = time.monotonic(), time.time()
        if phase is Phase.READY:
            self.idle_since = self.since
            self.since_ready = self.since
        self._on_change(self)

    def _sign(self) -> None:
        self._last_sign = time.monotonic()


async def _first(*works: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Until the first has ended; what was made for this wait is cancelled."""
    tasks = {asyncio.ensure_future(work) for work in works}
    made = tasks.difference(w for w in works if isinstance(w, asyncio.Future))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in made:
            task.cancel()
        await asyncio.wait(made)
