"""The owner of all state: who gets a lease, who must go, who waits, who is refused. Leases stand for answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code
from orchestrator.schemas import Desired, ServerPut, ServerState, SwapRequest, Transition
from orchestrator.servers import FlagTable, Lease
from tests.support.orchestrator import is_gone
from tests.unit.conftest import NEEDS_BYTES, World, ensure, open_world, refused, state, until

pytestmark = pytest.mark.integration


def asked(world: World, model: str) -> "asyncio.Task[Lease]":
    return asyncio.create_task(world.manager.lease(model))


async def has_gone(world: World, model: str) -> None:
    await until(lambda: not world.manager.server(model).instances, f"{model} has gone")


class TestRoom:
    async def test_a_request_takes_the_place_of_an_idle_server(self, world: World) -> None:
        for name in "ab":
            await world.model(name)
        world.room_for(1)
        await ensure(world, "a")
        await ensure(world, "b")
        assert state(world, "a") is ServerState.STOPPED
        assert is_gone(world.starts("a")[0])

    async def test_the_idle_longest_goes(self, world: World) -> None:
        for name in "abc":
            await world.model(name)
        world.room_for(2)
        for name in ("a", "b", "a", "c"):
            server = await ensure(world, name)
            # What they cost to bring back counts too; here it is the same.
            server.instances[0].start_seconds = 1.0
        assert [state(world, n) is ServerState.READY for n in "abc"] == [True, False, True]

    async def test_a_running_answer_is_not_cut_for_another(self, world: World) -> None:
        for name in "ab":
            await world.model(name)
        world.room_for(1)
        running = await world.manager.lease("a")
        waiting = asked(world, "b")
        await until(lambda: state(world, "a") is ServerState.DRAINING, "a has had its turn")
        assert not running.cut.is_set() and not waiting.done()
        assert "a" in str(world.manager.waits_for("b"))
        running.release()
        (await waiting).release()
        assert is_gone(world.starts("a")[0])

    async def test_a_drain_ends_at_its_deadline(self, tmp_path: Path, fake_flags: FlagTable) -> None:
        async with open_world(tmp_path, fake_flags, drain_timeout_seconds=0.2) as world:
            for name in "ab":
                await world.model(name)
            world.room_for(1)
            running = await world.manager.lease("a")
            waiting = asked(world, "b")
            async with asyncio.timeout(10):
                await running.cut.wait()
            assert running.cut_error().code is Code.DRAINED
            running.release()
            (await waiting).release()

    async def test_a_pinned_server_stays_and_the_refusal_says_so(self, world: World) -> None:
        await world.model("a", {"keep": {"pinned": True}, "place": {"memory": {"host": NEEDS_BYTES}}})
        await world.model("b")
        world.room_for(1)
        await ensure(world, "a")
        error = await refused(ensure(world, "b"))
        assert (error.code, error.status) == (Code.NO_ROOM, 503)
        assert error.retry_after_seconds is not None and "'a'" in error.message
        assert (await refused(world.manager.start("b"))).code is Code.NO_ROOM
        assert state(world, "a") is ServerState.READY

    async def test_a_model_larger_than_the_budget_is_refused_with_numbers(self, world: World) -> None:
        await world.model("a", {"place": {"memory": {"host": 3 << 20}}})
        world.budgets["host"] = 2 << 20
        error = await refused(ensure(world, "a"))
        assert error.code is Code.DOES_NOT_FIT
        assert "3 MiB of 2 MiB" in error.message

    async def test_a_refusal_is_an_event_once(self, world: World) -> None:
        await world.model("a", {"place": {"memory": {"host": 3 << 20}}})
        world.budgets["host"] = 2 << 20
        for _ in range(2):
            error = await refused(ensure(world, "a"))
        [told] = [event async for event in world.manager.events(is_live=False)]
        assert (told.model, told.state, told.failure) == ("a", "failed", "does_not_fit")
        assert told.why == error.message and told.instance is None

    async def test_members_of_a_group_exclude_each_other(self, world: World) -> None:
        for name in "ab":
            await world.model(name, {"keep": {"group": "one"}})
        await ensure(world, "a")
        await ensure(world, "b")
        assert state(world, "a") is ServerState.STOPPED

    async def test_what_is_wanted_comes_back_when_there_is_room(self, world: World) -> None:
        for name in "ab":
            await world.model(name)
        world.room_for(1)
        await world.manager.start("a")
        await ensure(world, "b")
        assert state(world, "a") is ServerState.STOPPED
        await world.manager.stop("b")
        await until(lambda: state(world, "a") is ServerState.READY, "a is back")


class TestKeep:
    async def test_an_idle_server_ends_after_its_time(self, world: World) -> None:
        await world.model("a", {"keep": {"idle_seconds": 0.1}})
        lease = await world.manager.lease("a")
        instance = lease.instance
        lease.release()
        await has_gone(world, "a")
        assert "idle" in instance.why
        await ensure(world, "a")

    async def test_a_wanted_one_does_not(self, world: World) -> None:
        await world.model("a", {"keep": {"idle_seconds": 0.05}})
        await world.model("b", {"keep": {"idle_seconds": 0.1}})
        await world.manager.start("a")
        await ensure(world, "b")
        await has_gone(world, "b")
        assert state(world, "a") is ServerState.READY

    async def test_preload_starts_it_without_a_wish(self, world: World) -> None:
        await world.model("a", {"keep": {"preload": True}})
        world.manager = world.new_manager()
        await world.manager.open()
        await until(lambda: state(world, "a") is ServerState.READY, "it is there")
        assert world.database.servers() == {}


class TestWaiting:
    async def test_in_order_within_a_limit(self, world: World) -> None:
        await world.model("a", {"limits": {"concurrent": 1}})
        first = await world.manager.lease("a")
        waiting = []
        for number in range(3):
            waiting.append(asked(world, "a"))
            await until(lambda n=number: len(world.manager.server("a").waiting) == n + 1, "it waits")  # type: ignore[misc]
        first.release()
        for task in waiting:
            lease = await task
            assert sum(t.done() for t in waiting) == waiting.index(task) + 1
            lease.release()

    async def test_beyond_the_bound_is_429_with_advice(self, world: World) -> None:
        await world.model("a", {"limits": {"concurrent": 1, "waiting": 1}})
        lease = await world.manager.lease("a")
        waiting = asked(world, "a")
        await until(lambda: world.manager.server("a").waiting, "one waits")
        error = await refused(world.manager.lease("a"))
        assert (error.code, error.status) == (Code.QUEUE_FULL, 429)
        assert error.retry_after_seconds is not None
        lease.release()
        (await waiting).release()

    async def test_a_wait_has_an_end(self, world: World) -> None:
        await world.model("a", {"limits": {"concurrent": 1, "wait_seconds": 0.05}})
        await world.manager.start("a")
        lease = await world.manager.lease("a")
        error = await refused(world.manager.lease("a"))
        assert (error.code, error.status) == (Code.WAIT_TIMEOUT, 503)
        assert not world.manager.server("a").waiting
        lease.release()

    async def test_who_leaves_while_waiting_leaves_nothing(self, world: World) -> None:
        await world.model("a", {"limits": {"concurrent": 1}})
        lease = await world.manager.lease("a")
        leaver, stayer = asked(world, "a"), asked(world, "a")
        await until(lambda: len(world.manager.server("a").waiting) == 2, "both wait")
        # In the same turn: the lease goes to the leaver, who is no longer there.
        lease.release()
        await asyncio.sleep(0)
        leaver.cancel()
        (await stayer).release()
        assert world.manager.server("a").running == 0

    async def test_waits_are_told_in_words(self, world: World) -> None:
        await world.model("a", load_gate=str(world.gate("load")))
        waiting = asked(world, "a")
        await until(lambda: world.starts("a"), "it loads")
        assert "loading" in str(world.manager.waits_for("a"))
        world.gate("load").touch()
        (await waiting).release()
        assert world.manager.waits_for("a") is None


class TestChange:
    async def test_the_old_one_serves_until_the_new_one_is_ready(self, world: World) -> None:
        gate = world.gate("load")
        await world.model("a")
        before = await world.manager.start("a")
        world.script("a", load_gate=str(gate))
        putting = asyncio.create_task(world.manager.put("a", ServerPut(flags={"ctx_size": 512})))
        await until(lambda: len(world.starts("a")) == 2, "the new one loads")
        lease = await world.manager.lease("a")
        assert lease.instance.child is not None and lease.instance.child.pid == before.pid
        gate.touch()
        await until(lambda: world.manager.server("a").serving is not lease.instance, "the new one is ready")
        new = await world.manager.lease("a")
        await until(lambda: lease.instance.state is ServerState.DRAINING, "the old one takes no more")
        assert new.instance is not lease.instance and not lease.cut.is_set()
        new.release()
        lease.release()
        assert (await putting).state is ServerState.READY  # type: ignore[union-attr]
        assert is_gone(before.pid or 0)

    async def test_an_operators_deadline_goes_before_the_usual_one(self, world: World) -> None:
        await world.model("a")
        lease = await world.manager.lease("a")
        stopping = asyncio.create_task(world.manager.stop("a", drain_seconds=0.05))
        async with asyncio.timeout(10):
            await lease.cut.wait()
        lease.release()
        assert (await stopping).state is ServerState.STOPPED

    async def test_a_request_during_a_drain_waits_and_starts_it_again(self, world: World) -> None:
        await world.model("a")
        lease = await world.manager.lease("a")
        stopping = asyncio.create_task(world.manager.stop("a"))
        await until(lambda: state(world, "a") is ServerState.DRAINING, "it drains")
        waiting = asked(world, "a")
        lease.release()
        await stopping
        (await waiting).release()
        assert len(world.starts("a")) == 2

    async def test_requests_for_who_was_swapped_out_wait_for_the_swap(self, world: World) -> None:
        gate = world.gate("load")
        await world.model("a")
        await world.model("b", load_gate=str(gate))
        world.room_for(1)
        await world.manager.start("a")
        swapping = asyncio.create_task(world.manager.swap(SwapRequest(start="b")))
        await until(lambda: world.starts("b"), "b loads")
        waiting = asked(world, "a")
        gate.touch()
        await swapping
        assert world.database.servers()["a"][0] is Desired.STOPPED
        (await waiting).release()


class TestDeath:
    async def test_a_wanted_server_that_died_is_started_again(self, world: World) -> None:
        await world.model("a")
        await world.manager.start("a")
        child = world.manager.server("a").child
        assert child is not None
        child.kill()
        await until(lambda: len(world.starts("a")) == 2 and state(world, "a") is ServerState.READY, "it is back")

    async def test_backoff_doubles_and_one_call_clears_it(self, world: World) -> None:
        await world.model("a", exit_in_load=1)
        rests = []
        for _ in range(3):
            await refused(ensure(world, "a"))
            server = world.manager.server("a")
            rests.append(round(server.rest_seconds))
            server.not_before = 0.0
        assert rests == [10, 20, 40]
        await refused(ensure(world, "a"))
        quarantine = world.manager.view(world.manager.server("a")).quarantine
        assert quarantine is not None and quarantine.strikes == 4
        world.script("a")
        assert (await world.manager.clear("a")).quarantine is None
        assert (await ensure(world, "a")).is_ready


async def heard(events: AsyncIterator[Transition], until_state: str) -> list[Transition]:
    found = []
    async with asyncio.timeout(10):
        async for event in events:
            found.append(event)
            if event.state == until_state:
                break
    return found


async def test_events_tell_every_transition_with_its_reason(world: World) -> None:
    await world.model("a")
    await world.manager.start("a")
    await world.manager.stop("a")
    told = await heard(world.manager.events(), "gone")
    states = [event.state for event in told]
    assert states[0] == "loading" and "ready" in states and states[-2:] == ["stopping", "gone"]
    assert all(event.why for event in told)
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    later = await heard(world.manager.events(after=told[-2].number), "gone")
    assert [event.number for event in later] == [told[-1].number]


async def test_events_end_with_the_manager(world: World) -> None:
    async def all_of_them() -> list[Any]:
        return [event async for event in world.manager.events()]

    listening = asyncio.create_task(all_of_them())
    await world.manager.close()
    assert await listening == []
