"""Builds the ASGI application, and owns start and shutdown: `python -m orchestrator.app`."""

import asyncio
import logging
import math
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import uvicorn
import uvloop
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator import __version__
from orchestrator.api import Context, Guard, Trail, build_api
from orchestrator.db import Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway import Front, Gateway, is_data
from orchestrator.gguf.known import PINNED_BUILD
from orchestrator.jobs import Jobs
from orchestrator.page import Page
from orchestrator.servers import (
    Benches,
    Cataloguing,
    Manager,
    ModelFiles,
    Observed,
    Opening,
    Runtime,
    Supply,
    Wanted,
)
from orchestrator.settings import Settings
from orchestrator.store import KINDS, require_cache
from orchestrator.telemetry import Requests
from orchestrator.telemetry.logs import start_logging
from orchestrator.telemetry.tracing import tracing

if TYPE_CHECKING:
    from orchestrator.telemetry.spans import Tracing

_log = logging.getLogger("slipstream")


def build_app(context: Context, gateway: Gateway, traces: "Tracing | None" = None) -> ASGIApp:
    """Guard, then the data plane to the gateway, the page to itself and everything else to the control plane."""
    settings = context.settings
    admin_keys, api_keys = settings.admin_keys(), settings.api_keys()
    api = build_api(context)
    page = Page(context, is_locked=bool(admin_keys or api_keys))

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        await (gateway if is_data(path) else page if page.has(path) else api)(scope, receive, send)

    guard = Guard(
        dispatch,
        admin_keys,
        api_keys,
        settings.allowed_hosts,
        settings.cors_origins,
        context.audit.refused,
    )
    return Front(guard, traces)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Context]:
    """Everything an orchestrator owns. On leaving, neither a server nor a job's child is left."""
    # Our own calls to servers keep no connection; of those at work there may be as many as there are servers.
    limits = httpx.Limits(max_connections=None)
    require_cache(settings.cache)
    _require_temporary_folder()
    with (
        Database(settings.state_dir) as database,
        tempfile.TemporaryDirectory(prefix="slipstream-empty-") as empty,
    ):
        opening = Opening(
            settings.llama_server,
            settings.cache,
            Path(empty),
            database.owner(),
            settings.hosts_file,
            settings.memory,
            settings.accelerator,
        )
        async with opening.hosts() as opened, httpx.AsyncClient(limits=limits, trust_env=False) as client:
            hosts = opened.hosts
            # What is told of "the" llama-server is told of the first host's.
            flags = await next(iter(hosts.values())).driver.flags(None)
            _log.info("llama-server: %s", flags.version)
            files = ModelFiles(settings.models_dir, settings.cache, is_pinned=flags.build == PINNED_BUILD)
            wanted = Wanted(database)
            manager = Manager(files, wanted, hosts, flags, Observed(database), _runtime(settings, client))
            jobs = Jobs(database, KINDS, settings.jobs)
            supply, cataloguing = Supply(manager, jobs), Cataloguing(manager)
            benches = Benches(database, manager, wanted)
            context = Context(
                *(settings, manager, supply, cataloguing, jobs, client, Requests(), Trail(database), benches),
                missing=opened.missing,
            )
            async with AsyncExitStack() as stack:
                stack.push_async_callback(context.audit.close)
                stack.push_async_callback(manager.close)
                stack.push_async_callback(jobs.close)
                await manager.open()
                await jobs.open()
                context.is_open = True
                try:
                    yield context
                finally:
                    context.is_open = False


def _require_temporary_folder() -> None:
    try:
        tempfile.gettempdir()
    except FileNotFoundError as e:
        raise SlipstreamError(
            Code.MISCONFIGURED,
            "there is no folder for temporary files that can be written, such as /tmp",
            hint="a container with a read-only root needs one: `--tmpfs /tmp`",
        ) from e


def _runtime(settings: Settings, client: httpx.AsyncClient) -> Runtime:
    return Runtime(
        client,
        settings.start_timeout_seconds,
        settings.stop_timeout_seconds,
        settings.log_lines,
        settings.idle_seconds,
        settings.max_waiting_requests,
        settings.wait_timeout_seconds,
        settings.drain_timeout_seconds,
    )


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    traces = tracing(os.environ, __version__)
    async with running(settings) as context:
        if not await asyncio.to_thread(settings.models_dir.is_dir):
            _log.warning("there is no folder of model files at %s (SLIPSTREAM_MODELS_DIR)", settings.models_dir)
        for problem in context.manager.catalog.problems:
            where = f":{problem.line}:{problem.column}" if problem.line else ""
            _log.warning("%s%s: %s", problem.file, where, problem.message)
        gateway = Gateway(
            context.manager,
            context.requests,
            settings.max_request_bytes,
            settings.upstream_timeout_seconds,
            settings.keep_alive_seconds,
        )
        config = uvicorn.Config(
            build_app(context, gateway, traces),
            host=settings.host,
            port=settings.port,
            access_log=False,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout_seconds),
        )
        server = _Server(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _on_signal, server, context)
        try:
            await server.serve()
        finally:
            await gateway.close()
            if traces is not None:
                await traces.close()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends the process before our servers are down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


def _on_signal(server: uvicorn.Server, context: Context) -> None:
    """The first one stops accepting, ends jobs and lets streams end; a second one ends everything at once."""
    if server.should_exit:
        server.force_exit = True
        context.manager.kill()
    context.manager.begin_close()
    context.jobs.begin_close()
    server.should_exit = True


def main() -> None:
    """Settings from the environment; a wrong one ends with a sentence, not a traceback."""
    try:
        settings = Settings()
        settings.admin_keys(), settings.api_keys()
    except ValidationError as e:
        sys.exit("\n".join(f"slipstream: {_told(p['loc'], p['msg'])}" for p in e.errors()))
    except (OSError, ValueError) as e:
        sys.exit(f"slipstream: {e}")
    start_logging(settings.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SlipstreamError as e:
        sys.exit(f"slipstream: {e.message}" + (f"\n  {e.hint}" if e.hint else ""))


def _told(loc: tuple[int | str, ...], message: str) -> str:
    variable = f"SLIPSTREAM_{loc[0]}: ".upper() if loc else ""
    return variable + message.removeprefix("Value error, ")


if __name__ == "__main__":
    main()
