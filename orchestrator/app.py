"""Builds the ASGI application, and owns start and shutdown: `python -m orchestrator.app`."""

import asyncio
import logging
import math
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import uvicorn
import uvloop
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.api import Context, Guard, build_api
from orchestrator.db import Database
from orchestrator.errors import SlipstreamError
from orchestrator.gateway import Gateway
from orchestrator.gguf.known import PINNED_BUILD
from orchestrator.jobs import Jobs
from orchestrator.servers import (
    Cataloguing,
    Manager,
    ModelFiles,
    Runtime,
    Supply,
    Wanted,
    child_environment,
    find_binary,
    read_flags,
)
from orchestrator.settings import Settings
from orchestrator.store import KINDS
from orchestrator.telemetry import Requests

_log = logging.getLogger("slipstream")


def build_app(context: Context) -> ASGIApp:
    """Guard, then `/v1` to the gateway and everything else to the control plane."""
    settings = context.settings
    api = build_api(context)
    gateway = Gateway(
        context.manager,
        context.client,
        context.requests,
        settings.max_request_bytes,
        settings.upstream_timeout_seconds,
    )

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        is_data = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (gateway if is_data else api)(scope, receive, send)

    return Guard(dispatch, settings.admin_keys(), settings.api_keys(), settings.allowed_hosts)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Context]:
    """Everything an orchestrator owns. On leaving, neither a server nor a job's child is left."""
    binary = find_binary(settings.llama_server, settings.cache)
    # Shorter than llama-server's own 5 s: it must never close a connection that we are about to use.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)
    with (
        Database(settings.state_dir) as database,
        tempfile.TemporaryDirectory(prefix="slipstream-empty-") as empty,
    ):
        empty_folder = Path(empty)
        flags = await read_flags(binary, child_environment(empty_folder))
        _log.info("llama-server: %s", flags.version)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
            runtime = Runtime(
                binary,
                empty_folder,
                client,
                settings.start_timeout_seconds,
                settings.stop_timeout_seconds,
                settings.log_lines,
            )
            files = ModelFiles(settings.models_dir, settings.cache, is_pinned=flags.build == PINNED_BUILD)
            manager = Manager(files, Wanted(database), flags, runtime)
            jobs = Jobs(database, KINDS, settings.jobs)
            supply, cataloguing = Supply(manager, jobs), Cataloguing(manager)
            context = Context(settings, manager, supply, cataloguing, jobs, client, Requests())
            async with AsyncExitStack() as stack:
                stack.push_async_callback(manager.close)
                stack.push_async_callback(jobs.close)
                await manager.open()
                await jobs.open()
                context.is_open = True
                try:
                    yield context
                finally:
                    context.is_open = False


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    async with running(settings) as context:
        if not await asyncio.to_thread(settings.models_dir.is_dir):
            _log.warning("there is no folder of model files at %s (SLIPSTREAM_MODELS_DIR)", settings.models_dir)
        for problem in context.manager.catalog.problems:
            where = f":{problem.line}:{problem.column}" if problem.line else ""
            _log.warning("%s%s: %s", problem.file, where, problem.message)
        config = uvicorn.Config(
            build_app(context),
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
        await server.serve()


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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = Settings()
        settings.admin_keys(), settings.api_keys()
    except ValidationError as e:
        sys.exit("\n".join(f"slipstream: {_told(p['loc'], p['msg'])}" for p in e.errors()))
    except (OSError, ValueError) as e:
        sys.exit(f"slipstream: {e}")
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
