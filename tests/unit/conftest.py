"""A world of servers in this process: the real manager, and the fake llama-server where a fault is provoked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvloop

from orchestrator.db import Database
from orchestrator.errors import SlipstreamError
from orchestrator.jobs import Jobs
from orchestrator.schemas import ServerState
from orchestrator.servers import (
    FlagTable,
    Host,
    Manager,
    ModelFiles,
    Observed,
    Runtime,
    Server,
    Wanted,
    child_environment,
    read_flags,
)
from orchestrator.servers.drivers.process import ProcessDriver
from orchestrator.store import KINDS
from tests import FAKE_SERVER, REPOSITORY
from tests.support.scripted import write_script

T = TypeVar("T")

# What each model is said to need, so that tests can say how many have room.
NEEDS_BYTES = 1000


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the orchestrator runs on: child processes behave otherwise on asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


async def until(probe: Callable[[], T], what: str, deadline_seconds: float = 10.0) -> T:
    """Call `probe` until it answers something true; TimeoutError names `what` after the deadline."""
    try:
        async with asyncio.timeout(deadline_seconds):
            while not (answer := probe()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return answer
    except TimeoutError:
        raise TimeoutError(f"not within {deadline_seconds:g} s: {what}") from None


@dataclass
class World:
    """Models on disk whose GGUF is a script for the fake server, and the manager over them."""

    folder: Path
    client: httpx.AsyncClient
    flags: FlagTable
    database: Database
    limits: dict[str, Any] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models_dir = self.folder / "models"
        self.empty = self.folder / "empty"
        for path in (self.models_dir, self.empty):
            path.mkdir(exist_ok=True)
        self.manager = self.new_manager()

    def new_manager(self, binary: Path = FAKE_SERVER) -> Manager:
        files = ModelFiles(self.models_dir, self.folder / "cache")
        host = Host("local", ProcessDriver(binary, self.empty, self.database.owner()), budgets=self.budgets)
        observed, self.wanted = Observed(self.database), Wanted(self.database)
        return Manager(files, self.wanted, {"local": host}, self.flags, observed, self.runtime())

    def room_for(self, models: int) -> None:
        """How many models have room at a time; without this, all of them."""
        self.budgets["host"] = models * NEEDS_BYTES

    def runtime(self) -> Runtime:
        settings: dict[str, Any] = {"start_timeout_seconds": 10.0, "stop_timeout_seconds": 5.0, "log_lines": 500}
        return Runtime(client=self.client, **settings | self.limits)

    async def model(self, name: str, fields: dict[str, Any] | None = None, **script: Any) -> None:
        """Write a model file and its script, and have the catalogue read it."""
        place = {"memory": {"host": NEEDS_BYTES}}
        spec = {"name": name, "source": {"path": f"{name}.gguf"}, "place": place} | (fields or {})
        (self.models_dir / f"{name}.yaml").write_text(json.dumps(spec))
        self.script(name, **script)
        await self.manager.refresh()

    def script(self, name: str, **script: Any) -> None:
        """What the fake server does from its next start on."""
        script = {"starts": str(self.folder / f"{name}.starts")} | script
        write_script(self.models_dir / f"{name}.gguf", script)

    def starts(self, name: str) -> list[int]:
        """Process ids of every start of a model, oldest first."""
        path = self.folder / f"{name}.starts"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def gate(self, name: str) -> Path:
        """A file that a script waits for; `touch()` opens the gate."""
        return self.folder / f"{name}.gate"


def state(world: World, model: str) -> ServerState:
    return world.manager.server(model).state


async def ensure(world: World, model: str) -> Server:
    """What a request does: the server is ready, and has been."""
    lease = await world.manager.lease(model)
    lease.release()
    return lease.server


async def refused(work: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        await work
    return caught.value


@pytest.fixture(scope="session")
def fake_flags() -> FlagTable:
    env = child_environment(Path("/nonexistent"))
    return asyncio.run(read_flags(FAKE_SERVER, env))


@asynccontextmanager
async def open_world(folder: Path, flags: FlagTable, **limits: Any) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        database = stack.enter_context(Database(folder / "state"))
        world = World(folder, client, flags, database, limits)
        try:
            yield world
        finally:
            await world.manager.close()


@pytest.fixture
async def world(tmp_path: Path, fake_flags: FlagTable) -> AsyncIterator[World]:
    async with open_world(tmp_path, fake_flags) as made:
        yield made


@pytest.fixture
async def jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    """The kinds of the store, in real child processes."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    jobs = Jobs(world.database, KINDS)
    await jobs.open()
    yield jobs
    await jobs.close()
