import asyncio
from typing import Any

import pytest

from orchestrator.errors import Code
from orchestrator.schemas import Desired, Plan, ServerPut, SwapRequest
from tests.unit.conftest import World, refused, until

pytestmark = pytest.mark.integration


async def steps(plan: Any) -> list[tuple[str, str]]:
    plan = await plan
    assert isinstance(plan, Plan)
    return [(action.do, action.model) for action in plan.actions]


async def test_start_of_a_stopped_server(world: World) -> None:
    await world.model("a")
    plan = await world.manager.put("a", ServerPut(state=Desired.RUNNING, flags={"ctx_size": 7}), dry_run=True)
    assert isinstance(plan, Plan)
    [action] = plan.actions
    assert (action.do, action.why) == ("start", "not running")
    assert action.argv[-2:] == ("--ctx-size", "7")


async def test_a_missing_file_refuses_the_plan(world: World) -> None:
    source = {"pypi": "some-model==1.0", "file": "some/model.gguf", "sha256": "0" * 64}
    await world.model("a", {"source": source})
    error = await refused(world.manager.swap(SwapRequest(start="a"), dry_run=True))
    assert (error.code, error.details) == (Code.MODEL_INCOMPLETE, {"missing": ["model.gguf"]})


async def test_flags_may_be_set_before_the_files_are_there(world: World) -> None:
    source = {"pypi": "some-model==1.0", "file": "some/model.gguf", "sha256": "0" * 64}
    await world.model("a", {"source": source})
    await world.manager.put("a", ServerPut(flags={"ctx_size": 7}))
    assert world.database.servers()["a"] == (Desired.STOPPED, {"ctx-size": 7})
    assert (await refused(world.manager.put("a", ServerPut(flags={"nonsense": 1})))).code is Code.INVALID_FLAG
    await world.manager.put("a", ServerPut(state=Desired.STOPPED))


async def test_flags_of_a_running_server(world: World) -> None:
    await world.model("a")
    await world.manager.start("a")
    put = ServerPut(flags={"ctx_size": 7})
    assert await steps(world.manager.put("a", put, dry_run=True)) == [("start", "a"), ("stop", "a")]
    world.room_for(1)
    assert await steps(world.manager.put("a", put, dry_run=True)) == [("stop", "a"), ("start", "a")]
    same = ServerPut(flags={}, state=Desired.RUNNING)
    assert await steps(world.manager.put("a", same, dry_run=True)) == [("keep", "a")]


async def test_flags_of_a_stopped_server_wait(world: World) -> None:
    await world.model("a")
    put = ServerPut(flags={"ctx_size": 7})
    assert await steps(world.manager.put("a", put, dry_run=True)) == [("keep", "a")]


async def test_stop(world: World) -> None:
    await world.model("a")
    put = ServerPut(state=Desired.STOPPED)
    assert await steps(world.manager.put("a", put, dry_run=True)) == [("keep", "a")]
    await world.manager.start("a")
    assert await steps(world.manager.put("a", put, dry_run=True)) == [("stop", "a")]


async def test_a_load_under_way_is_kept(world: World) -> None:
    gate = world.gate("load")
    await world.model("a", load_gate=str(gate))
    starting = asyncio.create_task(world.manager.start("a"))
    await until(lambda: world.starts("a"), "it loads")
    running = ServerPut(state=Desired.RUNNING)
    assert await steps(world.manager.put("a", running, dry_run=True)) == [("keep", "a")]
    gate.touch()
    await starting


async def test_swap_names_who_must_go(world: World) -> None:
    for name in "abc":
        await world.model(name)
    await world.manager.start("a")
    await world.manager.start("b")
    everybody = SwapRequest(start="c")
    assert await steps(world.manager.swap(everybody, dry_run=True)) == [("start", "c"), ("stop", "a"), ("stop", "b")]
    world.room_for(2)
    assert await steps(world.manager.swap(everybody, dry_run=True)) == [("stop", "a"), ("stop", "b"), ("start", "c")]
    one = SwapRequest(start="c", stop=("b",))
    assert await steps(world.manager.swap(one, dry_run=True)) == [("stop", "b"), ("start", "c")]


async def test_a_start_names_who_goes_for_lack_of_room(world: World) -> None:
    for name in "ab":
        await world.model(name)
    world.room_for(1)
    await world.manager.start("a")
    assert await steps(world.manager.plan("b", "start")) == [("stop", "a"), ("start", "b")]
