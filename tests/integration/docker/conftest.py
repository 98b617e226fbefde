"""Drivers on the real engine, with an owner and a network of their own that end with the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from orchestrator.schemas import ModelSpec, PathSource
from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.drivers.base import Order
from orchestrator.servers.drivers.docker import DockerDriver
from orchestrator.servers.drivers.docker_child import DockerChild
from orchestrator.servers.launch import Launch
from orchestrator.servers.logs import LogBuffer
from tests.support import ToyBox
from tests.support.docker import TestEngine, build_server_image, docker_host, new_owner, require_engine, second_engine

LOAD_SECONDS = 60.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the orchestrator runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def engine() -> TestEngine:
    return require_engine()


@pytest.fixture(scope="session")
def image(engine: TestEngine, request: pytest.FixtureRequest) -> str:
    # Not a parameter: without an engine nothing needs to be compiled.
    return build_server_image(request.getfixturevalue("patched_server"))


@pytest.fixture(scope="session")
def second(engine: TestEngine, image: str) -> Iterator[TestEngine]:
    """A second engine that has the image too."""
    with second_engine() as other:
        other.load_from(engine, image)
        yield other


@dataclass
class Started:
    """A child, and what it says."""

    child: DockerChild
    log: LogBuffer
    signs: list[None]

    async def listens(self) -> "Started":
        """Until it listens; fails with its log when it ends before."""
        async with asyncio.timeout(LOAD_SECONDS):
            waits = [asyncio.ensure_future(e.wait()) for e in (self.child.listening, self.child.exited)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        assert self.child.listening.is_set(), "\n".join(self.log.tail(30))
        return self

    async def ends(self) -> "Started":
        async with asyncio.timeout(LOAD_SECONDS):
            await self.child.exited.wait()
        return self

    async def complete(self, **headers: str) -> httpx.Response:
        """One short generation."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            body = {"prompt": "hello", "n_predict": 8}
            given = headers or {"authorization": self.child.authorization}
            return await client.post(f"{self.child.url}/completion", json=body, headers=given)


@dataclass
class Site:
    """What a test starts servers with. `driver` makes drivers; all of them share an owner and a network."""

    engine: TestEngine
    image: str
    model: Path
    owner: str = field(default_factory=new_owner)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def network(self) -> str:
        return f"slipstream-{self.owner}"

    def spec(self, **keys: Any) -> HostSpec:
        keys = {"address": self.engine.address, "network": self.network} | keys
        return HostSpec.model_validate(docker_host("here", self.image, **keys))

    async def driver(self, owner: str | None = None, **keys: Any) -> DockerDriver:
        driver = DockerDriver(self.spec(**keys), owner or self.owner)
        await driver.open()
        self.stack.push_async_callback(driver.close)
        return driver

    def order(self, *flags: str, model: str = "toy", image: str | None = None, erases: bool = False) -> Order:
        argv = ["--model", str(self.model), "--alias", model, "--offline", "--metrics", "--slots"]
        argv += ["--spec-type", "draft-mtp", "--ctx-size", "512", "--threads", "1", "--spec-draft-threads", "1", *flags]
        spec = ModelSpec(name=model, source=PathSource(path=self.model.name))
        launch = Launch(spec, self.model, None, tuple(argv), "here", image, erases=erases)
        signs: list[None] = []
        return Order(model, launch, LogBuffer(5000), lambda: signs.append(None))

    async def start(self, driver: DockerDriver, order: Order) -> Started:
        child = await driver.start(order)
        self.stack.push_async_callback(child.let_go)
        return Started(child, order.log, [])

    async def close(self) -> None:
        await self.stack.aclose()
        await asyncio.to_thread(self.engine.remove_owned, self.owner)
        await asyncio.to_thread(self.engine.remove_network, self.network)


@pytest.fixture
async def site(engine: TestEngine, image: str, toys: ToyBox) -> AsyncIterator[Site]:
    made = Site(engine, image, toys.mtp().path)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def second_site(second: TestEngine, image: str, toys: ToyBox) -> AsyncIterator[Site]:
    made = Site(second, image, toys.mtp().path)
    try:
        yield made
    finally:
        await made.close()
