"""How a change is carried out, and how it is undone when it fails or is cancelled."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple

from orchestrator.errors import SlipstreamError
from orchestrator.schemas import Desired
from orchestrator.servers.launch import Launch
from orchestrator.servers.server import Server
from orchestrator.servers.wanted import Want, Wanted


class Change(NamedTuple):
    """A server, what it becomes, what is then wanted of it, and who goes first."""

    server: Server
    launch: Launch
    want: Want
    stop: tuple[Server, ...] = ()


class Changes:
    """Carries changes out. With `is_closing` nothing is brought back any more."""

    def __init__(self, wanted: Wanted) -> None:
        self.is_closing = False
        self._wanted = wanted
        self._background: set[asyncio.Task[None]] = set()

    async def apply(self, change: Change) -> None:
        """A transition of `change.server`: stop who goes, start who comes, or put back what ran.

        What is wanted is written last: a change that was not acknowledged is as if it had not been asked for.
        """
        server, stop = change.server, change.stop
        before = [(s, launch) for s in stop if (launch := _running_or_coming(s))]
        if server.is_ready and server.launch:
            before.insert(0, (server, server.launch))
        try:
            await asyncio.gather(*(take_down(s) for s in stop), server.take_down())
            await self._bring_up(server, change.launch, before)
        except asyncio.CancelledError:
            for other, launch in before:
                if other is not server:
                    self.in_background(self._bring_back(other, launch))
            raise
        for other in stop:
            await self._wanted.keep(other.model, Want(Desired.STOPPED, self._wanted[other.model].flags))
        await self._wanted.keep(server.model, change.want)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end; the loop itself keeps only weak references to tasks."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _bring_up(self, server: Server, launch: Launch, before: list[tuple[Server, Launch]]) -> None:
        try:
            await server.bring_up(launch)
        except SlipstreamError as e:
            if not before:
                raise
            raise await self._rolled_back(server, before, e) from e

    async def _rolled_back(
        self, server: Server, before: list[tuple[Server, Launch]], error: SlipstreamError
    ) -> SlipstreamError:
        """Start again what ran; the error that then tells the client about both."""
        told, back = [], 0
        for other, launch in before:
            work = partial(other.bring_up, launch)
            try:
                # This runs inside `server`'s own transition; the others get one of their own.
                await (work() if other is server else other.command(work, launch))
                told.append(f"{other.model!r} runs again as before")
                back += 1
            except SlipstreamError as e:
                told.append(f"{other.model!r} did not come back: {e.message}")
        message = f"{error.message}; {'; '.join(told)}"
        return SlipstreamError(error.code, message, details=error.details | {"rolled_back": back == len(before)})

    async def _bring_back(self, server: Server, launch: Launch) -> None:
        """Undo what a cancelled swap did to a server it was not about."""
        if not self.is_closing and not (server.busy and server.goal == launch):
            await server.begin(partial(server.bring_up, launch), launch)


def _running_or_coming(server: Server) -> Launch | None:
    if server.busy:
        return server.goal
    return server.launch if server.is_ready else None


async def take_down(server: Server) -> None:
    """End a server by a transition of its own."""
    await server.command(server.take_down, None)
