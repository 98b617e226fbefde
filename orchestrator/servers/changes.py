"""How a command is carried out, and how it is undone when it fails.

Each is a task of its own: whoever asked may leave, and it goes on. What is wanted is written last: a change that was
not acknowledged is as if it had not been asked for.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired
from orchestrator.servers.hosts import Goal
from orchestrator.servers.launch import Launch
from orchestrator.servers.operation import Operation
from orchestrator.servers.planning import is_same, is_same_goal
from orchestrator.servers.scheduler import Scheduler
from orchestrator.servers.server import Server
from orchestrator.servers.telling import not_running
from orchestrator.servers.wanted import Want, Wanted


@dataclass(frozen=True, eq=False)
class Change:
    """A server, what it becomes, what is then wanted of it, and who goes for it."""

    server: Server
    goals: tuple[Goal, ...]
    want: Want
    stop: tuple[Server, ...] = ()
    fresh: bool = False
    drain_seconds: float | None = None


@dataclass(frozen=True)
class _Before:
    """What a server ran as before a change."""

    server: Server
    goals: tuple[Goal, ...]
    generation: int


class Changes:
    """Carries changes out, by the scheduler."""

    def __init__(self, scheduler: Scheduler, wanted: Wanted) -> None:
        self._scheduler = scheduler
        self._wanted = wanted
        self._tasks: dict[asyncio.Task[None], tuple[Change, list[_Before]]] = {}

    async def bring(self, change: Change) -> None:
        """Until the change is made, or SlipstreamError when it was undone."""
        server = change.server
        joined = self._task_of(server) if is_same_goal(server, change.goals) and not change.fresh else None
        runs_so = server.is_ready and server.operation is None and is_same(server, change.goals)
        if runs_so and not change.stop and not change.fresh:
            server.forgive()
            await self._wanted.keep(server.model, change.want)
            return
        if joined is None or change.stop:
            before = [b for s in (server, *change.stop) if (b := _before(s)) is not None]
            # Begun before anything else can look: the next command must see it.
            operation = self._scheduler.bring(
                server,
                change.goals,
                fresh=change.fresh,
                replaces=change.stop,
                drain_seconds=change.drain_seconds,
            )
            joined = asyncio.create_task(self._apply(change, operation, before), name=f"change of {server.model}")
            self._tasks[joined] = (change, before)
            joined.add_done_callback(self._forget)
        await asyncio.shield(joined)
        await self._wanted.keep(server.model, change.want)

    async def take_down(self, server: Server, drain_seconds: float | None) -> None:
        """Until nothing of the server is left."""
        operation = self._scheduler.take_down(server, drain_seconds)
        # Whoever asked may leave before.
        operation.done.add_done_callback(lambda _: self._scheduler.release(operation))
        await asyncio.shield(operation.done)

    async def close(self) -> None:
        """Until every change has ended; the scheduler is closed, so none of them waits."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def launches(self) -> Iterator[tuple[str, Launch]]:
        """What may be put back."""
        for _, before in self._tasks.values():
            for b in before:
                yield from ((b.server.model, goal.launch) for goal in b.goals)

    async def _apply(self, change: Change, operation: Operation, before: list[_Before]) -> None:
        try:
            await operation.done
        except SlipstreamError as e:
            if e.code in (Code.CONFLICT, Code.SHUTTING_DOWN):
                raise
            raise await self._undone(change, before, e) from e
        try:
            for other in change.stop:
                await self._wanted.keep(other.model, Want(Desired.STOPPED, self._wanted[other.model].flags))
            await self._wanted.keep(change.server.model, change.want)
        finally:
            self._scheduler.release(operation)

    async def _undone(self, change: Change, before: list[_Before], error: SlipstreamError) -> SlipstreamError:
        """Put back what ran; the error that then tells the client about both."""
        told, back = [], 0
        failure = change.server.failure
        for b in before:
            try:
                again = await self._put_back(b)
                told.append(f"{b.server.model!r} {'runs again' if again else 'goes on'} as before")
                back += 1
            except SlipstreamError as e:
                told.append(f"{b.server.model!r} did not come back: {e.message}")
        server = change.server
        if server.failure is None and not server.is_ready:
            server.failure = failure
        if not server.is_ready and server.operation is None:
            self._scheduler.fail_waiting(server, not_running(server))
        if not before:
            return error
        message = f"{error.message}; {'; '.join(told)}"
        return SlipstreamError(error.code, message, details=error.details | {"rolled_back": back == len(before)})

    async def _put_back(self, before: _Before) -> bool:
        """Whether it had to be started again; one that still serves goes on."""
        server = before.server
        if server.serving is not None and server.operation is None:
            server.goals, server.generation = before.goals, before.generation
            server.forgive()
            server.failure = None
            self._scheduler.poke()
            return False
        operation = self._scheduler.bring(server, before.goals)
        await operation.done
        self._scheduler.release(operation)
        return True

    def _task_of(self, server: Server) -> "asyncio.Task[None] | None":
        """The change under way whose operation is the server's newest."""
        if server.operation is None or server.operation.leaving:
            return None
        return next((t for t, (change, _) in reversed(self._tasks.items()) if change.server is server), None)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        # Whoever waits sees the error; without this, one that nobody awaits would be reported as lost.
        if not task.cancelled():
            task.exception()


def _before(server: Server) -> _Before | None:
    """What runs, or comes by another's wish; None when nothing does."""
    instance = server.serving or server.coming
    if instance is None:
        return None
    return _Before(server, (instance.goal,), instance.generation)
