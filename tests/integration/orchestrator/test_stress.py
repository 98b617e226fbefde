"""A random walk of commands at the same time, some of which fail, die or are given up: the invariants hold."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from orchestrator.errors import SlipstreamError
from orchestrator.schemas import Desired, ServerPut, ServerState, SwapRequest
from orchestrator.servers.scheduling import Phase
from tests.support.orchestrator import is_gone, processes_naming
from tests.unit.conftest import World, ensure, fake_flags, until, world

__all__ = ["fake_flags", "world"]
pytestmark = pytest.mark.integration

MODELS = "abc"
COMMANDS = 40
PAUSE_SECONDS = 0.08
SETTLE_SECONDS = 30.0


class Walk:
    """Commands on three models, drawn by a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.manager = world, world.manager
        self.random = random.Random(seed)

    def command(self) -> Awaitable[None]:
        commands: list[Callable[[str], Awaitable[object]]] = [
            *[self._ask] * 4,
            self.manager.start,
            self.manager.stop,
            self.manager.restart,
            self._swap,
            self._put,
            self._kill,
            self._fail,
            self._give_up,
        ]
        return self._quietly(self.random.choice(commands), self.random.choice(MODELS))

    async def _quietly(self, command: Callable[[str], Awaitable[object]], model: str) -> None:
        with suppress(SlipstreamError):
            await command(model)

    async def _ask(self, model: str) -> None:
        await ensure(self.world, model)

    async def _swap(self, model: str) -> None:
        await self.manager.swap(SwapRequest(start=model))

    async def _put(self, model: str) -> None:
        await self.manager.put(model, ServerPut(flags={"ctx_size": self.random.randrange(1, 4)}))

    async def _kill(self, model: str) -> None:
        child = self.manager.server(model).child
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()

    async def _fail(self, model: str) -> None:
        self.world.script(model, exit_in_load=1)
        await asyncio.sleep(self.random.random() / 2)
        self.world.script(model)

    async def _give_up(self, model: str) -> None:
        request = asyncio.ensure_future(ensure(self.world, model))
        await asyncio.wait({request}, timeout=self.random.random() / 5)
        request.cancel()
        with suppress(asyncio.CancelledError, SlipstreamError):
            await request

    def alive(self, model: str) -> list[int]:
        return [pid for pid in self.world.starts(model) if not is_gone(pid)]


def is_settled(world: World, model: str) -> bool:
    """Whether nothing of it comes or goes. What is wanted may rest after failures."""
    server = world.manager.server(model)
    moving = any(i.phase is not Phase.READY for i in server.instances)
    is_due = world.manager.view(server).desired is Desired.RUNNING and not server.instances and not server.is_resting
    return not moving and server.operation is None and not is_due


@pytest.mark.parametrize("seed", [1, 2])
async def test_state_and_processes_agree(world: World, seed: int) -> None:
    for model in MODELS:
        await world.model(model)
    walk = Walk(world, seed)
    running = []
    for _ in range(COMMANDS):
        running.append(asyncio.ensure_future(walk.command()))
        await asyncio.sleep(walk.random.random() * 2 * PAUSE_SECONDS)
        # Two during a change of flags: the old one serves until the new one is ready.
        assert all(len(walk.alive(model)) <= 2 for model in MODELS), "three processes of one model"
    async with asyncio.timeout(SETTLE_SECONDS):
        await asyncio.gather(*running)
        for model in MODELS:
            await until(lambda m=model: is_settled(world, m), f"{model} has settled", SETTLE_SECONDS)  # type: ignore[misc]
    for model in MODELS:
        view = world.manager.view(world.manager.server(model))
        assert walk.alive(model) == ([view.pid] if view.state is ServerState.READY else []), view
        assert view.state in (ServerState.READY, ServerState.STOPPED, ServerState.FAILED)
        kept, flags = world.database.servers().get(model, (Desired.STOPPED, {}))
        assert (view.desired, view.flags) == (kept, flags)
        assert not (view.state is ServerState.STOPPED and view.desired is Desired.RUNNING and not view.failure), view
    await world.manager.close()
    assert processes_naming(world.folder) == []
