"""One server: its state, its process, and the way from one to the next."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prometheus_client import Metric

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure, ServerState
from orchestrator.servers.launch import Launch
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.process import Child, spawn
from orchestrator.servers.readiness import NotReady, read_metrics, warm_up
from orchestrator.servers.transitions import Transitions

_DOWN = frozenset({ServerState.STOPPED, ServerState.FAILED})
_REFUSED = {Code.MODEL_INCOMPLETE: "incomplete", Code.PREFLIGHT_FAILED: "preflight"}
# After a failed start, or a second crash in a row within this time of one, requests do not start a server again
# for this long.
REST_SECONDS = 10.0
_EXIT_TIMEOUT_SECONDS = 1.0
_METRICS_TIMEOUT_SECONDS = 5.0
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runtime:
    """What every server shares."""

    binary: Path
    empty_folder: Path
    client: httpx.AsyncClient
    start_timeout_seconds: float
    stop_timeout_seconds: float
    log_lines: int


@dataclass
class Server(Transitions):
    """State and process of one model's server."""

    runtime: Runtime
    state: ServerState = ServerState.STOPPED
    since: float = field(default_factory=time.time)
    launch: Launch | None = None
    child: Child | None = None
    failure: Failure | None = None
    start_seconds: float | None = None
    starts: int = 0
    warm_up_metrics: tuple[Metric, ...] = ()
    _watcher: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.log = LogBuffer(self.runtime.log_lines)
        self._last_sign = 0.0
        self._rest_until = 0.0
        self._early_deaths = 0

    @property
    def is_ready(self) -> bool:
        """Whether requests can go to it."""
        return self.state is ServerState.READY

    @property
    def is_down(self) -> bool:
        """Whether there is no process and none is on its way."""
        return not self.busy and self.state in _DOWN

    @property
    def is_resting(self) -> bool:
        """Whether it failed so lately that a request should not try again; an operator may."""
        return self.state is ServerState.FAILED and time.monotonic() < self._rest_until

    def forgive(self) -> None:
        """Forget earlier crashes: an operator has spoken."""
        self._early_deaths, self._rest_until = 0, 0.0

    async def until_end_noticed(self) -> None:
        """Until a process that has died is known to be dead."""
        if self._watcher is not None:
            await asyncio.wait({self._watcher})

    async def bring_up(self, launch: Launch) -> None:
        """From no process to ready. On any error or cancellation no process is left."""
        began = time.monotonic()
        self.launch, self.failure, self.start_seconds = launch, None, None
        try:
            await self._load(launch)
        except asyncio.CancelledError:
            await self._end(ServerState.STOPPED)
            raise
        except Exception as e:
            error = self._as_slipstream(e)
            self.failure = self.failure or Failure(reason="internal", message=error.message)
            await self._fail()
            raise error from e
        self.start_seconds = time.monotonic() - began
        self._enter(ServerState.READY)
        assert self.child is not None
        self._watcher = asyncio.create_task(self._watch(self.child), name=f"watch of {self.model}")

    async def take_down(self) -> None:
        """End the process, if there is one. When it returns nothing of it is left."""
        if self.child is not None:
            self._enter(ServerState.STOPPING)
        self.failure = None
        await self._end(ServerState.STOPPED)

    def refuse(self, error: SlipstreamError) -> None:
        """Note that this server could not even be planned."""
        self.failure = Failure(reason=_REFUSED.get(error.code, "plan"), message=error.message)
        self._enter(ServerState.FAILED)

    async def _load(self, launch: Launch) -> None:
        self._enter(ServerState.LOADING)
        self._sign()
        self.starts += 1
        runtime = self.runtime
        child = await spawn(runtime.binary, launch.argv, runtime.empty_folder, self.log, self._sign)
        self.child = child
        await self._while_alive(child, self._listens(child))
        self._enter(ServerState.WARMING)
        warm = warm_up(runtime.client, child, launch, runtime.start_timeout_seconds)
        await self._while_alive(child, warm)
        self.warm_up_metrics = await read_metrics(runtime.client, child, _METRICS_TIMEOUT_SECONDS)

    async def _listens(self, child: Child) -> None:
        """Until the process listens. Every log line is a sign of progress and moves the deadline."""
        loop, limit = asyncio.get_running_loop(), self.runtime.start_timeout_seconds
        while not child.listening.is_set():
            left = self._last_sign + limit - loop.time()
            if left <= 0:
                raise NotReady("start_timeout", f"llama-server showed no progress for {limit:.0f} s while loading")
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await child.listening.wait()

    async def _while_alive(self, child: Child, work: Coroutine[Any, Any, T]) -> T:
        """`work`, unless the process ends first."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(child.exited.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if child.exited.is_set():
                self.failure = child.failure()
                raise self._start_failed()
            return task.result()
        except NotReady as e:
            if e.may_be_dead:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                        await child.exited.wait()
            said = Failure(reason=e.reason, message=str(e), log_tail=child.tail())
            self.failure = child.failure() if child.exited.is_set() else said
            raise self._start_failed() from e
        finally:
            for pending in (task, gone):
                pending.cancel()
            await asyncio.wait({task, gone})

    def _start_failed(self) -> SlipstreamError:
        assert self.failure is not None
        return SlipstreamError(
            Code.SERVER_START_FAILED,
            f"the server of {self.model!r} did not start: {self.failure.message}",
            details={"reason": self.failure.reason, "log_tail": list(self.failure.log_tail)},
        )

    async def _watch(self, child: Child) -> None:
        await child.exited.wait()
        if self.child is child and self.state is ServerState.READY:
            self.failure = child.failure()
            self._early_deaths = self._early_deaths + 1 if time.time() - self.since < REST_SECONDS else 0
            if self._early_deaths > 1:
                self._rest_until = time.monotonic() + REST_SECONDS
            self.child = None
            self._enter(ServerState.FAILED)

    async def _fail(self) -> None:
        await self._end(ServerState.FAILED)
        self._rest_until = time.monotonic() + REST_SECONDS

    def _as_slipstream(self, error: Exception) -> SlipstreamError:
        if isinstance(error, SlipstreamError):
            return error
        _log.error("the server of %r could not be started", self.model, exc_info=error)
        what = error.strerror if isinstance(error, OSError) else type(error).__name__
        return SlipstreamError(Code.INTERNAL, f"the server of {self.model!r} could not be started: {what}")

    async def _end(self, state: ServerState) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if self.child is not None:
            await _to_the_end(self.child.stop(self.runtime.stop_timeout_seconds))
            self.child = None
        self._enter(state)

    def _enter(self, state: ServerState) -> None:
        if state is not self.state:
            self.state, self.since = state, time.time()

    def _sign(self) -> None:
        self._last_sign = asyncio.get_running_loop().time()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """`work`, whole even when the caller is cancelled meanwhile: a half-stopped process must not be forgotten."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
