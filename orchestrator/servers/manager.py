"""Commands over servers: what operators ask for, checked first, then carried out by the scheduler."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Literal

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import (
    Desired,
    FlagValue,
    ModelSpec,
    Plan,
    ServerPut,
    ServerState,
    ServerView,
    SwapRequest,
    Transition,
)
from orchestrator.servers import planning, telling
from orchestrator.servers.changes import Change, Changes
from orchestrator.servers.files import ModelFiles
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.goals import Goals
from orchestrator.servers.hosts import Goal, Host
from orchestrator.servers.instance import Runtime
from orchestrator.servers.launch import Launch
from orchestrator.servers.lease import Lease
from orchestrator.servers.memory import Observed
from orchestrator.servers.scheduler import Scheduler
from orchestrator.servers.server import Server
from orchestrator.servers.wanted import Want, Wanted

# What stands in a model's status after a request or command for it was refused; what is missing may yet be brought.
_NOTED = frozenset({Code.PREFLIGHT_FAILED, Code.HAZARD, Code.DOES_NOT_FIT})
_log = logging.getLogger(__name__)


class Manager:
    """Each command sees current files, flags and state, never a copy of earlier ones."""

    def __init__(
        self,
        files: ModelFiles,
        wanted: Wanted,
        hosts: Mapping[str, Host],
        flags: FlagTable,
        observed: Observed,
        runtime: Runtime,
    ) -> None:
        self.flags = flags
        self.files = files
        self.catalog = Catalog(files.models_dir, {}, {}, ())
        self.scheduler = Scheduler(hosts, wanted, observed, runtime, self._spec)
        self.scraper = runtime.scraper
        self._goals = Goals(files, hosts, observed)
        self._hosts = hosts
        self._wanted = wanted
        self._changes = Changes(self.scheduler, wanted)
        self._swap = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._read_at = -math.inf

    async def open(self) -> None:
        """Read the catalogue, take over or end what runs from before, and begin to bring up what is to run."""
        await self.refresh()
        names = {*self._wanted.running(), *(n for n, spec in self.catalog.models.items() if spec.keep.preload)}
        for name in sorted(names & set(self.catalog.models)):
            server = self._server(name)
            try:
                server.goals = await self._goals.of(self.catalog.get(name), self._wanted[name].flags)
            except SlipstreamError as e:
                self._refuse(server, e)
        for host in self._hosts.values():
            await self._take_over(host)
        self.scheduler.poke()

    def begin_close(self) -> None:
        """Start nothing more, end loads and log follows; answers that are being generated go on."""
        self.scheduler.begin_close()

    async def close(self) -> None:
        """End every server; nothing starts after this."""
        await self.scheduler.close()
        await self._changes.close()
        await self.scraper.close()

    def kill(self) -> None:
        """End every process at once; `close` then has nothing to wait for."""
        self.scheduler.kill()

    async def refresh(self, *, within_seconds: float = 0.0) -> None:
        """Read the model files again if one has changed, unless that was looked at in the last seconds."""
        if time.monotonic() - self._read_at < within_seconds:
            return
        # In turn: of two at a time, the one that has read earlier might come in later.
        async with self._reading:
            self.catalog = await asyncio.to_thread(load_catalog, self.files.models_dir, self.catalog)
            self._read_at = time.monotonic()

    def server(self, name: str) -> Server:
        """The server of a model or alias; SlipstreamError model_not_found otherwise.

        A server whose model file is gone is found as long as it runs: it must still be stoppable.
        """
        known = self.scheduler.servers
        if name not in self.catalog.names and name in known and not known[name].is_down:
            return known[name]
        return self._server(self.catalog.get(name).name)

    def servers(self) -> list[Server]:
        """A server for every model of the catalogue, and those that still run without a model file."""
        names = set(self.catalog.models) | {n for n, s in self.scheduler.servers.items() if not s.is_down}
        return [self._server(n) for n in sorted(names)]

    def launches(self) -> Iterator[tuple[str, Launch]]:
        """What runs or comes, by model; while a change is under way, also what may be put back."""
        for server in self.scheduler.servers.values():
            if not server.is_down or server.waiting:
                yield from ((server.model, i.goal.launch) for i in server.instances)
                yield from ((server.model, goal.launch) for goal in server.goals)
        yield from self._changes.launches()

    def view(self, server: Server) -> ServerView:
        """What clients may see of a server."""
        return telling.view_of(server, self._wanted[server.model])

    def state_of(self, name: str) -> ServerState:
        """State of the server of a model or alias."""
        return self.server(name).state

    def waits_for(self, name: str) -> str | None:
        """Why requests for a model wait, in words; None when none does."""
        return telling.waits_for(self.server(name))

    def events(self, after: int = 0, *, is_live: bool = True) -> AsyncIterator[Transition]:
        """Transitions that are kept and whose numbers are greater than `after`, then with `is_live` what comes."""
        return self.scheduler.events.follow(after, is_live=is_live)

    async def lease(self, name: str, *, exemplar: Mapping[str, str] | None = None) -> Lease:
        """A hold on the ready server for one request, started if need be. The caller may be cancelled freely.

        `exemplar` names the request beside its wait in the metrics.
        """
        began = time.monotonic()
        server = await self._prepared(name)
        lease = await self.scheduler.lease(server)
        self.scheduler.swaps.wait_seconds.observe(server.model, time.monotonic() - began, exemplar)
        return lease

    async def put(
        self, name: str, body: ServerPut, *, dry_run: bool = False, drain_seconds: float | None = None
    ) -> Plan | ServerView:
        """Set desired state and flags. Everything is checked before the running server is touched."""
        await self.refresh()
        server = self.server(name)
        stops = body.state is Desired.STOPPED
        # One whose model file is gone can still be stopped.
        spec = self.catalog.models.get(server.model) if stops else self.catalog.get(server.model)
        old = self._wanted[server.model]
        flags = old.flags
        if body.flags is not None:
            flags = await self._goals.check(spec or self.catalog.get(server.model), body.flags)
        elif spec is not None:
            await self._goals.check(spec, flags)
        want = Want(body.state or old.desired, flags)
        if stops or (want.desired is Desired.STOPPED and server.is_down):
            # Flags may be set before the files are there.
            if dry_run:
                rests = Plan(actions=(planning.keep(server, "not running; flags count from the next start"),))
                return planning.plan_down(server) if stops else rests
            await self._wanted.keep(server.model, want)
            server.forgive()
            if stops:
                await self._changes.take_down(server, drain_seconds)
            return self.view(server)
        goals = await self._planned(server, flags)
        if dry_run:
            return planning.plan_start(self.scheduler, server, goals)
        await self._changes.bring(Change(server, goals, want, drain_seconds=drain_seconds))
        return self.view(server)

    async def plan(self, name: str, verb: Literal["start", "stop", "restart"]) -> Plan:
        """What `start`, `stop` or `restart` would do."""
        await self.refresh()
        server = self.server(name)
        if verb == "stop":
            return planning.plan_down(server)
        goals = await self._planned(server)
        return planning.plan_start(self.scheduler, server, goals, is_restart=verb == "restart")

    async def start(self, name: str) -> ServerView:
        """Start a server now and keep it wanted."""
        await self.refresh()
        server = self.server(name)
        goals = await self._planned(server)
        await self._changes.bring(Change(server, goals, Want(Desired.RUNNING, self._wanted[server.model].flags)))
        return self.view(server)

    async def stop(self, name: str, *, drain_seconds: float | None = None) -> ServerView:
        """End a server, once what runs on it has ended or the drain is over. A later request brings it back."""
        if name not in self.catalog.names:
            await self.refresh()
        server = self.server(name)
        await self._wanted.keep(server.model, Want(Desired.STOPPED, self._wanted[server.model].flags))
        await self._changes.take_down(server, drain_seconds)
        return self.view(server)

    async def restart(self, name: str, *, drain_seconds: float | None = None) -> ServerView:
        """A new process in place of the one there is, if any."""
        await self.refresh()
        server = self.server(name)
        goals = await self._planned(server)
        want = self._wanted[server.model]
        await self._changes.bring(Change(server, goals, want, fresh=True, drain_seconds=drain_seconds))
        return self.view(server)

    async def swap(
        self, body: SwapRequest, *, dry_run: bool = False, drain_seconds: float | None = None
    ) -> Plan | ServerView:
        """Start one in place of others; if it does not start, what ran before runs again."""
        await self.refresh()
        server = self.server(body.start)
        flags = self._wanted[server.model].flags
        if body.flags is not None:
            flags = await self._goals.check(self.catalog.get(server.model), body.flags)
        goals = await self._planned(server, flags)
        stop = self._swapped_out(body, server)
        if dry_run:
            return planning.plan_start(self.scheduler, server, goals, stop)
        if self._swap.locked():
            raise SlipstreamError(Code.CONFLICT, "another swap is under way", retry_after_seconds=telling.RETRY_SECONDS)
        async with self._swap:
            want = Want(Desired.RUNNING, flags)
            await self._changes.bring(Change(server, goals, want, stop, drain_seconds=drain_seconds))
        return self.view(server)

    async def clear(self, name: str) -> ServerView:
        """Lift a quarantine: the next request, or the wish that it runs, tries it at once."""
        await self.refresh()
        server = self.server(name)
        server.forgive()
        self.scheduler.poke()
        return self.view(server)

    def _spec(self, model: str) -> ModelSpec | None:
        return self.catalog.models.get(model)

    def _server(self, model: str) -> Server:
        return self.scheduler.server(model)

    async def _planned(self, server: Server, flags: dict[str, FlagValue] | None = None) -> tuple[Goal, ...]:
        """The ways to run it, with flags other than the wanted ones if given. What speaks against all is noted."""
        wanted = self._wanted[server.model].flags if flags is None else flags
        try:
            return await self._goals.of(self.catalog.get(server.model), wanted)
        except SlipstreamError as e:
            if e.code in _NOTED and server.is_down:
                self._refuse(server, e)
            raise

    def _refuse(self, server: Server, error: SlipstreamError) -> None:
        """Note what speaks against a start. It is an event once, however many requests meet it."""
        before = server.failure
        failure = server.refuse(error)
        if failure != before:
            self.scheduler.events.add(server.model, server.state, failure.message, failure=failure.reason)

    async def _prepared(self, name: str) -> Server:
        """The server for a request, with goals to start it by if it does not run."""
        # One that runs keeps its settings; one that is started gets those of now.
        if name not in self.catalog.names or not self.server(name).is_ready:
            await self.refresh()
        server = self.server(name)
        if _goes_on(server):
            return server
        if self.scheduler.is_closing:
            raise telling.shutting_down()
        if server.is_resting:
            raise telling.quarantined(server)
        goals = await self._planned(server)
        if server.is_resting:
            raise telling.not_running(server)
        if not _goes_on(server):
            server.goals = goals
        return server

    async def _take_over(self, host: Host) -> None:
        """Servers of ours that run already: those that are what we would start go on, the others end."""
        for found in await host.driver.found():
            spec = self.catalog.models.get(found.model)
            goals: tuple[Goal, ...] = ()
            if spec is not None:
                try:
                    goals = await self._goals.of(spec, self._wanted[spec.name].flags)
                except SlipstreamError as e:
                    _log.warning("%s runs on %s and cannot be planned: %s", spec.name, host.name, e.message)
            goal = next((g for g in goals if g.host is host and g.launch.key == found.launch), None)
            if goal is not None and not self._server(found.model).instances:
                _log.info("%s runs on %s already and is taken over", found.model, host.name)
                host.add_held(goal.needs)
                self.scheduler.adopt(self._server(found.model), goal, found)
            else:
                _log.info("%s runs on %s, and nobody wants it so: it is ended", found.model, host.name)
                await host.driver.remove(found)

    def _swapped_out(self, body: SwapRequest, server: Server) -> tuple[Server, ...]:
        if body.stop is None:
            return tuple(s for s in self.scheduler.servers.values() if s is not server and not s.is_down)
        out = tuple(self.server(n) for n in body.stop)
        if server in out:
            raise SlipstreamError(Code.CONFLICT, f"{server.model!r} cannot be started and stopped in one swap")
        return out


def _goes_on(server: Server) -> bool:
    """Whether a server runs, comes, or is brought by a command: its goals are then not a request's to set."""
    brought = server.operation is not None and not server.operation.leaving
    return server.is_ready or server.coming is not None or brought
