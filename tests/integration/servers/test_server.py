"""The state machine of one server: what counts as ready, and what as failed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, Failure, ServerState, SwapRequest
from orchestrator.servers import FlagTable
from tests.support.orchestrator import is_gone
from tests.unit.conftest import World, ensure, open_world, refused, state, until

pytestmark = pytest.mark.integration

MTP = {"speculation": {"type": "draft-mtp"}}


async def failure_of(world: World, fields: dict[str, Any] | None = None, **script: Any) -> Failure:
    """The failure of a start that must fail, and leave no process."""
    await world.model("a", fields, **script)
    with pytest.raises(SlipstreamError):
        await world.manager.start("a")
    view = world.manager.view(world.manager.server("a"))
    assert (view.state, view.pid) == (ServerState.FAILED, None)
    assert view.failure is not None
    assert all(is_gone(pid) for pid in world.starts("a"))
    return view.failure


async def test_states_follow_in_order(world: World) -> None:
    gate = world.gate("load")
    await world.model("a", load_gate=str(gate))
    server = world.manager.server("a")
    seen = [server.state]
    starting = asyncio.create_task(world.manager.start("a"))

    def is_over() -> bool:
        if server.state is not seen[-1]:
            seen.append(server.state)
        return starting.done()

    await until(lambda: is_over() or world.starts("a"), "it loads")
    gate.touch()
    await until(is_over, "it is ready")
    order = [ServerState.STOPPED, ServerState.LOADING, ServerState.WARMING, ServerState.READY]
    assert [state for state in order if state in seen] == seen
    assert seen[0] is ServerState.STOPPED and ServerState.LOADING in seen and seen[-1] is ServerState.READY
    await world.manager.stop("a")
    assert server.state is ServerState.STOPPED


async def test_a_slow_load_that_shows_progress_may_outlast_the_timeout(tmp_path: Path, fake_flags: FlagTable) -> None:
    async with open_world(tmp_path, fake_flags, start_timeout_seconds=1.0) as world:
        gate = world.gate("load")
        await world.model("a", load_gate=str(gate), ticks=True)
        starting = asyncio.create_task(world.manager.start("a"))
        server = world.manager.server("a")
        began = await until(lambda: server.since if server.state is ServerState.LOADING else 0, "it loads")
        loop = asyncio.get_running_loop()
        end = loop.time() + 2.0
        await until(lambda: loop.time() > end or starting.done(), "twice the timeout has passed")
        assert not starting.done()
        assert server.since == began
        gate.touch()
        assert (await starting).state is ServerState.READY


async def test_a_silent_load_fails_at_the_timeout(tmp_path: Path, fake_flags: FlagTable) -> None:
    async with open_world(tmp_path, fake_flags, start_timeout_seconds=0.5) as world:
        failure = await failure_of(world, load_gate=str(world.gate("never")))
    assert failure.reason == "start_timeout"
    assert "no progress" in failure.message


@pytest.mark.parametrize(
    "script, reason",
    [
        ({"exit_in_load": 1}, "exited"),
        ({"signal_in_load": 11}, "killed"),
        ({"die_in_generation": True}, "killed"),
        ({"generation": 500}, "not_ready"),
        ({"props": "no json"}, "not_ready"),
        ({"props": "[]"}, "not_ready"),
        ({"props": "{}"}, "not_ready"),
        ({"props": '{"total_slots": null, "model_alias": "a"}'}, "not_ready"),
        ({"alias": "somebody else's"}, "port"),
    ],
)
async def test_a_start_that_goes_wrong_is_told_by_reason(world: World, script: dict[str, Any], reason: str) -> None:
    assert (await failure_of(world, **script)).reason == reason


async def test_ready_means_a_draft_on_every_slot(world: World) -> None:
    failure = await failure_of(world, MTP, slots=3, draft_n=[4, 0, 4])
    assert failure.reason == "no_draft"
    assert "slot 1" in failure.message and "draft-mtp" in failure.message


async def test_an_ngram_drafter_may_find_nothing(world: World) -> None:
    await world.model("a", {"speculation": {"type": "ngram-map-k"}}, draft_n=0)
    assert (await world.manager.start("a")).state is ServerState.READY


async def test_without_speculation_no_draft_is_asked_for(world: World) -> None:
    await world.model("a", slots=2, draft_n=0)
    assert (await world.manager.start("a")).state is ServerState.READY


async def test_an_embedding_server_is_ready_without_a_generation(world: World) -> None:
    await world.model("a", {"server": {"embeddings": True}}, die_in_generation=True)
    assert (await world.manager.start("a")).state is ServerState.READY


async def test_a_crash_is_seen_without_being_asked(world: World) -> None:
    await world.model("a")
    server = await ensure(world, "a")
    assert server.child is not None
    server.child.kill()
    await until(lambda: server.state is ServerState.FAILED, "its end is seen")
    view = world.manager.view(server)
    assert view.pid is None and view.argv == ()
    assert view.failure is not None


async def test_an_incomplete_model_is_refused_and_nothing_is_touched(world: World) -> None:
    await world.model("a", {"drafter": {"path": "gone.gguf"}})
    await world.model("b")
    running = await world.manager.start("b")
    for work in (world.manager.start("a"), ensure(world, "a"), world.manager.swap(SwapRequest(start="a"))):
        error = await refused(work)
        assert (error.code, error.details) == (Code.MODEL_INCOMPLETE, {"missing": ["gone.gguf"]})
    assert state(world, "a") is ServerState.STOPPED
    assert world.manager.view(world.manager.server("b")) == running


async def test_a_wanted_model_that_is_incomplete_says_so_after_a_restart(world: World) -> None:
    await world.model("a", {"drafter": {"path": "gone.gguf"}})
    await world.database.set_server("a", Desired.RUNNING, {})
    world.manager = world.new_manager()
    await world.manager.open()
    failure = world.manager.view(world.manager.server("a")).failure
    assert failure is not None and failure.reason == "incomplete"
    assert "gone.gguf" in failure.message
