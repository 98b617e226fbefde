"""Changes of flags and swaps: checked first, acknowledged last, undone when they fail or are cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code
from orchestrator.schemas import Desired, Plan, ServerPut, ServerState, ServerView, SwapRequest
from orchestrator.servers import FlagTable
from tests.support.orchestrator import is_gone
from tests.unit.conftest import World, open_world, refused, state, until

pytestmark = pytest.mark.integration


class TestPut:
    @pytest.mark.parametrize("flags", [{"nonsense": 1}, {"draft_max": 3}, {"log_file": "x"}, {"model": "x"}])
    async def test_refused_flag_touches_nothing(self, world: World, flags: dict[str, Any]) -> None:
        await world.model("a")
        before = await world.manager.start("a")
        assert (await refused(world.manager.put("a", ServerPut(flags=flags)))).code is Code.INVALID_FLAG
        assert world.manager.view(world.manager.server("a")) == before
        assert world.database.servers()["a"] == (Desired.RUNNING, {})

    async def test_new_flags_restart_and_are_kept(self, world: World) -> None:
        await world.model("a")
        before = await world.manager.start("a")
        view = await world.manager.put("a", ServerPut(flags={"ctx_size": 512}))
        assert isinstance(view, ServerView)
        assert view.pid != before.pid
        assert view.argv[-2:] == ("--ctx-size", "512")
        assert world.database.servers()["a"] == (Desired.RUNNING, {"ctx-size": 512})

    async def test_equal_flags_keep_the_process(self, world: World) -> None:
        await world.model("a", {"server": {"ctx_size": 512}})
        before = await world.manager.start("a")
        view = await world.manager.put("a", ServerPut(flags={"ctx-size": 512}))
        assert isinstance(view, ServerView)
        assert view.pid == before.pid

    async def test_flags_of_a_stopped_server_wait_for_its_start(self, world: World) -> None:
        await world.model("a")
        await world.manager.put("a", ServerPut(flags={"ctx_size": 512}))
        assert world.starts("a") == []
        assert "512" in (await world.manager.start("a")).argv

    async def test_state_running_starts_and_stopped_stops(self, world: World) -> None:
        await world.model("a")
        up = await world.manager.put("a", ServerPut(state=Desired.RUNNING))
        assert isinstance(up, ServerView) and up.state is ServerState.READY
        down = await world.manager.put("a", ServerPut(state=Desired.STOPPED))
        assert isinstance(down, ServerView) and down.state is ServerState.STOPPED
        assert is_gone(world.starts("a")[0])

    @pytest.mark.parametrize("has_room", [True, False])
    async def test_flags_that_fail_at_load_roll_back(self, world: World, has_room: bool) -> None:
        await world.model("a")
        world.room_for(1 + has_room)
        before = await world.manager.start("a")
        world.script("a", exit_in_load=2, complaint="E out of memory")
        putting = asyncio.create_task(world.manager.put("a", ServerPut(flags={"ctx_size": 512})))
        await until(lambda: len(world.starts("a")) == 2, "the new flags are tried")
        world.script("a")
        error = await refused(putting)
        assert error.details["rolled_back"] is True
        assert error.details["reason"] == "out_of_memory"
        assert "E out of memory" in error.message
        view = world.manager.view(world.manager.server("a"))
        assert (view.state, view.argv, view.flags, view.failure) == (ServerState.READY, before.argv, {}, None)
        assert (view.pid == before.pid) is has_room
        assert world.database.servers()["a"] == (Desired.RUNNING, {})

    async def test_a_rollback_that_fails_says_so(self, world: World) -> None:
        await world.model("a")
        world.room_for(1)
        await world.manager.start("a")
        world.script("a", exit_in_load=2)
        error = await refused(world.manager.put("a", ServerPut(flags={"ctx_size": 512})))
        assert "did not come back" in error.message
        assert error.details.get("rolled_back") is False
        assert state(world, "a") is ServerState.FAILED

    @pytest.mark.parametrize(
        "body", [ServerPut(flags={"ctx_size": 1}), ServerPut(state=Desired.STOPPED), ServerPut(state=Desired.RUNNING)]
    )
    async def test_dry_run_changes_nothing(self, world: World, body: ServerPut) -> None:
        await world.model("a")
        before = await world.manager.start("a")
        assert isinstance(await world.manager.put("a", body, dry_run=True), Plan)
        assert world.manager.view(world.manager.server("a")) == before
        assert world.database.servers()["a"] == (Desired.RUNNING, {})


class TestSwap:
    async def test_one_goes_and_the_other_comes(self, world: World) -> None:
        await world.model("a")
        await world.model("b")
        await world.manager.start("a")
        view = await world.manager.swap(SwapRequest(start="b"))
        assert isinstance(view, ServerView) and view.state is ServerState.READY
        assert state(world, "a") is ServerState.STOPPED
        assert is_gone(world.starts("a")[0])
        assert {m: d for m, (d, _) in world.database.servers().items()} == {
            "a": Desired.STOPPED,
            "b": Desired.RUNNING,
        }

    @pytest.mark.parametrize("has_room", [True, False])
    async def test_a_failed_swap_puts_back_what_ran(self, world: World, has_room: bool) -> None:
        await world.model("a")
        world.room_for(1 + has_room)
        await world.model("b", exit_in_load=1, complaint="E no")
        await world.manager.start("a")
        error = await refused(world.manager.swap(SwapRequest(start="b")))
        assert error.details["rolled_back"] is True
        assert "E no" in error.message
        assert state(world, "a") is ServerState.READY
        assert state(world, "b") is ServerState.FAILED
        assert len(world.starts("a")) == (1 if has_room else 2)
        assert world.database.servers() == {"a": (Desired.RUNNING, {})}

    async def test_a_model_without_its_file_stops_nobody(self, world: World) -> None:
        await world.model("a")
        await world.model("b", {"source": {"path": "missing.gguf"}})
        before = await world.manager.start("a")
        error = await refused(world.manager.swap(SwapRequest(start="b")))
        assert error.code is Code.MODEL_INCOMPLETE
        assert world.manager.view(world.manager.server("a")) == before

    async def test_two_at_once_are_a_conflict(self, world: World) -> None:
        gate = world.gate("load")
        await world.model("a", load_gate=str(gate))
        await world.model("b")
        first = asyncio.create_task(world.manager.swap(SwapRequest(start="a")))
        await until(lambda: world.starts("a"), "the first swap is under way")
        error = await refused(world.manager.swap(SwapRequest(start="b")))
        assert error.status == 409
        assert error.retry_after_seconds is not None
        gate.touch()
        await first

    async def test_a_model_cannot_replace_itself(self, world: World) -> None:
        await world.model("a")
        error = await refused(world.manager.swap(SwapRequest(start="a", stop=("a",))))
        assert error.code is Code.CONFLICT

    async def test_dry_run_tells_the_steps_and_takes_none(self, world: World) -> None:
        await world.model("a")
        await world.model("b")
        before = await world.manager.start("a")
        plan = await world.manager.swap(SwapRequest(start="b"), dry_run=True)
        assert isinstance(plan, Plan)
        assert [(action.do, action.model) for action in plan.actions] == [("start", "b"), ("stop", "a")]
        assert str(world.folder) not in str(plan)
        assert world.manager.view(world.manager.server("a")) == before
        assert world.starts("b") == []

    @pytest.mark.parametrize("models", [1, 2])
    async def test_a_stop_in_the_middle_brings_back_who_had_to_go(self, world: World, models: int) -> None:
        await world.model("a")
        world.room_for(models)
        await world.model("b", load_gate=str(world.gate("never")))
        await world.manager.start("a")
        swapping = asyncio.create_task(world.manager.swap(SwapRequest(start="b")))
        await until(lambda: world.starts("b"), "b loads")
        await world.manager.stop("b")
        await refused(swapping)
        assert world.database.servers()["a"][0] is Desired.RUNNING
        await until(lambda: state(world, "a") is ServerState.READY, "what is wanted runs again")

    async def test_a_stop_while_the_others_still_go_brings_them_back(
        self, tmp_path: Path, fake_flags: FlagTable
    ) -> None:
        async with open_world(tmp_path, fake_flags, stop_timeout_seconds=0.5) as world:
            await world.model("a", ignore_term=True)
            await world.model("b")
            world.room_for(1)
            await world.manager.start("a")
            swapping = asyncio.create_task(world.manager.swap(SwapRequest(start="b")))
            await until(lambda: state(world, "a") is ServerState.STOPPING, "a goes")
            await world.manager.stop("b")
            await refused(swapping)
            await until(lambda: state(world, "a") is ServerState.READY, "a is back")
            assert state(world, "b") is ServerState.STOPPED
