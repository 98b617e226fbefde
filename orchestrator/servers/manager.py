"""The one owner of every server: what is wanted, what runs, and how the one becomes the other."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Literal

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, FlagValue, Plan, ServerPut, ServerView, SwapRequest
from orchestrator.servers import planning
from orchestrator.servers.changes import Change, Changes, take_down
from orchestrator.servers.files import ModelFiles, Resolved
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.launch import Launch, check_flags, plan_launch
from orchestrator.servers.server import Runtime, Server
from orchestrator.servers.telling import RETRY_SECONDS, not_running, shutting_down, view_of
from orchestrator.servers.wanted import Want, Wanted


class Manager:
    """Commands over servers. Each sees current files, flags and state, never a copy of earlier ones."""

    def __init__(self, files: ModelFiles, wanted: Wanted, flags: FlagTable, runtime: Runtime) -> None:
        self.flags = flags
        self.files = files
        self.catalog = Catalog(files.models_dir, {}, {}, ())
        self._wanted = wanted
        self._runtime = runtime
        self._servers: dict[str, Server] = {}
        self._changes = Changes(wanted)
        self._swap = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Read the catalogue and begin to bring up what was asked to run."""
        await self.refresh()
        for name in self._wanted.running():
            if name not in self.catalog.models:
                continue
            server = self._server(name)
            want, resolved = self._wanted[name], await self._resolve(name)
            try:
                change = Change(server, self._launch(resolved, want.flags), want)
            except SlipstreamError as e:
                server.refuse(e)
            else:
                await server.begin(partial(self._changes.apply, change), change.launch)

    def begin_close(self) -> None:
        """Start nothing more, end loads and log follows; answers that are being generated go on."""
        self._changes.is_closing = True
        for server in self._servers.values():
            server.log.close()
            if not server.is_ready and server.busy:
                self._changes.in_background(take_down(server))

    async def close(self) -> None:
        """End every server; nothing starts after this."""
        self.begin_close()
        await asyncio.gather(*(take_down(s) for s in self._servers.values()))

    def kill(self) -> None:
        """End every process at once; `close` then has nothing to wait for."""
        for server in self._servers.values():
            if server.child is not None:
                server.child.kill()

    async def refresh(self) -> None:
        """Read the model files again if one has changed."""
        # In turn: of two at a time, the one that has read earlier might come in later.
        async with self._reading:
            self.catalog = await asyncio.to_thread(load_catalog, self.files.models_dir, self.catalog)

    def server(self, name: str) -> Server:
        """The server of a model or alias; SlipstreamError model_not_found otherwise.

        A server whose model file is gone is found as long as it runs: it must still be stoppable.
        """
        if name not in self.catalog.names and name in self._servers and not self._servers[name].is_down:
            return self._servers[name]
        return self._server(self.catalog.get(name).name)

    def servers(self) -> list[Server]:
        """A server for every model of the catalogue, and those that still run without a model file."""
        names = set(self.catalog.models) | {n for n, s in self._servers.items() if not s.is_down}
        return [self._server(n) for n in sorted(names)]

    def launches(self) -> Iterator[tuple[str, Launch]]:
        """What runs or comes, by model; while a change is under way, also what may be put back."""
        changing = any(server.busy for server in self._servers.values())
        for server in self._servers.values():
            if server.launch is not None and (changing or not server.is_down):
                yield server.model, server.launch
            if server.goal is not None and server.busy:
                yield server.model, server.goal

    def view(self, server: Server) -> ServerView:
        """What clients may see of a server."""
        return view_of(server, self._wanted[server.model], is_patched=self.flags.is_patched)

    async def ensure(self, name: str) -> Server:
        """The ready server for a request, started if need be. The caller may be cancelled freely."""
        # One that runs keeps its settings; one that is started gets those of now.
        if name not in self.catalog.names or not self.server(name).is_ready:
            await self.refresh()
        server = self.server(name)
        loaded = False
        while not server.is_ready:
            if server.busy:
                # A load that somebody ends while we wait is not begun anew by us.
                loaded = loaded or server.goal is not None
                await server.settled()
            elif self._changes.is_closing:
                raise shutting_down()
            elif loaded or server.is_resting:
                raise not_running(server)
            else:
                resolved = await self._resolve(server.model)
                if server.busy or server.is_ready or server.is_resting:
                    continue
                want = self._wanted[server.model]
                change = Change(server, self._launch(resolved, want.flags), want)
                await server.begin(partial(self._changes.apply, change), change.launch, join=True)
        return server

    async def put(self, name: str, body: ServerPut, *, dry_run: bool = False) -> Plan | ServerView:
        """Set desired state and flags. Everything is checked before the running server is touched."""
        await self.refresh()
        server = self.server(name)
        stops = body.state is Desired.STOPPED
        # One whose model file is gone can still be stopped.
        spec = self.catalog.models.get(server.model) if stops else self.catalog.get(server.model)
        resolved = await self._resolve(server.model) if spec is not None and not stops else None
        old = self._wanted[server.model]
        flags = old.flags if body.flags is None else self.flags.check(body.flags)
        want = Want(body.state or old.desired, flags)
        if resolved is None or (want.desired is Desired.STOPPED and server.is_down):
            # Flags may be set before the files are there.
            if spec is not None:
                check_flags(spec, flags, self.flags)
            if dry_run:
                rests = Plan(actions=(planning.keep(server, "not running; flags count from the next start"),))
                return planning.plan_down(server) if stops else rests
            await self._wanted.keep(server.model, want)
            await take_down(server)
            return self.view(server)
        change = Change(server, self._launch(resolved, flags), want)
        if dry_run:
            return planning.plan_start(server, change.launch)
        await self._bring(change)
        return self.view(server)

    async def plan(self, name: str, verb: Literal["start", "stop", "restart"]) -> Plan:
        """What `start`, `stop` or `restart` would do."""
        await self.refresh()
        server = self.server(name)
        if verb == "stop":
            return planning.plan_down(server)
        resolved = await self._resolve(server.model)
        launch = self._launch(resolved, self._wanted[server.model].flags)
        return planning.plan_start(server, launch, is_restart=verb == "restart")

    async def start(self, name: str) -> ServerView:
        """Start a server now and keep it wanted."""
        await self.refresh()
        server = self.server(name)
        resolved = await self._resolve(server.model)
        want = Want(Desired.RUNNING, self._wanted[server.model].flags)
        await self._bring(Change(server, self._launch(resolved, want.flags), want))
        return self.view(server)

    async def stop(self, name: str) -> ServerView:
        """End a server now. A later request brings it back."""
        if name not in self.catalog.names:
            await self.refresh()
        server = self.server(name)
        await self._wanted.keep(server.model, Want(Desired.STOPPED, self._wanted[server.model].flags))
        await take_down(server)
        return self.view(server)

    async def restart(self, name: str) -> ServerView:
        """End the process, if any, and start a new one."""
        await self.refresh()
        server = self.server(name)
        resolved = await self._resolve(server.model)
        want = self._wanted[server.model]
        change = Change(server, self._launch(resolved, want.flags), want)
        server.forgive()
        await server.command(partial(self._changes.apply, change), change.launch)
        return self.view(server)

    async def swap(self, body: SwapRequest, *, dry_run: bool = False) -> Plan | ServerView:
        """Stop others, start one; if it does not start, what ran before runs again."""
        await self.refresh()
        server = self.server(body.start)
        resolved = await self._resolve(server.model)
        flags = self._wanted[server.model].flags if body.flags is None else self.flags.check(body.flags)
        stop = self._swapped_out(body, server)
        change = Change(server, self._launch(resolved, flags), Want(Desired.RUNNING, flags), stop)
        if dry_run:
            return planning.plan_start(server, change.launch, stop)
        if self._swap.locked():
            raise SlipstreamError(Code.CONFLICT, "another swap is under way", retry_after_seconds=RETRY_SECONDS)
        server.forgive()
        async with self._swap:
            await server.command(partial(self._changes.apply, change), change.launch)
        return self.view(server)

    def _server(self, model: str) -> Server:
        if model not in self._servers:
            self._servers[model] = Server(model, self._runtime)
        return self._servers[model]

    async def _resolve(self, model: str) -> Resolved | SlipstreamError:
        """The files of a model, or why they cannot be served. Looks at the disk, so state is read after it."""
        spec = self.catalog.get(model)
        try:
            return await asyncio.to_thread(self.files.resolve, spec)
        except SlipstreamError as e:
            return e

    def _launch(self, resolved: Resolved | SlipstreamError, flags: dict[str, FlagValue]) -> Launch:
        if self._changes.is_closing:
            raise shutting_down()
        if isinstance(resolved, SlipstreamError):
            raise resolved
        return plan_launch(resolved, flags, self.flags)

    async def _bring(self, change: Change) -> None:
        change.server.forgive()
        same = planning.is_same(change.server, change.launch)
        if change.server.busy or not same:
            await change.server.command(partial(self._changes.apply, change), change.launch, join=same)
        await self._wanted.keep(change.server.model, change.want)

    def _swapped_out(self, body: SwapRequest, server: Server) -> tuple[Server, ...]:
        if body.stop is None:
            return tuple(s for s in self._servers.values() if s is not server and not s.is_down)
        out = tuple(self.server(n) for n in body.stop)
        if server in out:
            raise SlipstreamError(Code.CONFLICT, f"{server.model!r} cannot be started and stopped in one swap")
        return out
