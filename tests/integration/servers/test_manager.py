import asyncio
import shutil
import threading
from itertools import count
from pathlib import Path

import pytest

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, ModelSpec, Plan, ServerPut, ServerState, ServerView
from orchestrator.servers import FlagTable, ModelFiles
from orchestrator.servers.files import Resolved
from tests import FAKE_SERVER
from tests.support.orchestrator import is_gone
from tests.unit.conftest import World, ensure, open_world, refused, state, until

pytestmark = pytest.mark.integration


async def test_start_makes_ready_and_keeps_the_want(world: World) -> None:
    await world.model("a")
    view = await world.manager.start("a")
    assert (view.state, view.desired) == (ServerState.READY, Desired.RUNNING)
    assert view.pid in world.starts("a")
    assert view.start_seconds is not None
    assert world.database.servers() == {"a": (Desired.RUNNING, {})}


async def test_view_shows_no_folder(world: World) -> None:
    await world.model("a")
    view = await world.manager.start("a")
    assert "a.gguf" in view.argv
    assert str(world.folder) not in " ".join(view.argv)


async def test_an_unpatched_server_is_said_to_be_one(world: World) -> None:
    await world.model("a")
    [warning] = (await world.manager.start("a")).warnings
    assert "not patched" in warning
    assert (await world.manager.stop("a")).warnings == ()


async def test_twenty_requests_start_one_process(world: World) -> None:
    gate = world.gate("load")
    await world.model("a", load_gate=str(gate))
    waiting = [asyncio.create_task(ensure(world, "a")) for _ in range(20)]
    await until(lambda: world.starts("a"), "the process has started")
    gate.touch()
    servers = await asyncio.gather(*waiting)
    assert len({id(server) for server in servers}) == 1
    assert len(world.starts("a")) == 1


async def test_an_alias_leads_to_the_same_server(world: World) -> None:
    await world.model("a", {"aliases": ["first"]})
    await asyncio.gather(ensure(world, "a"), ensure(world, "first"))
    assert len(world.starts("a")) == 1


async def test_a_waiting_request_that_leaves_does_not_end_the_load(world: World) -> None:
    gate = world.gate("load")
    await world.model("a", load_gate=str(gate))
    leaver, stayer = (asyncio.create_task(ensure(world, "a")) for _ in range(2))
    await until(lambda: world.starts("a"), "the process has started")
    leaver.cancel()
    await asyncio.wait({leaver})
    gate.touch()
    assert (await stayer).is_ready
    assert len(world.starts("a")) == 1


@pytest.mark.parametrize("starters", [2, 10])
async def test_starts_at_the_same_time_join(world: World, starters: int) -> None:
    await world.model("a")
    views = await asyncio.gather(*(world.manager.start("a") for _ in range(starters)))
    assert {view.state for view in views} == {ServerState.READY}
    assert len(world.starts("a")) == 1


async def test_a_start_right_after_a_load_began_joins_it(world: World) -> None:
    await world.model("a")
    request = asyncio.create_task(ensure(world, "a"))
    await until(lambda: world.manager.server("a").coming, "the load has begun")
    await world.manager.start("a")
    assert (await request).is_ready
    assert len(world.starts("a")) == 1


async def test_stop_during_a_load_cancels_it_and_leaves_no_process(world: World) -> None:
    await world.model("a", load_gate=str(world.gate("never")))
    starting = asyncio.create_task(world.manager.start("a"))
    [pid] = await until(lambda: world.starts("a"), "the process has started")
    view = await world.manager.stop("a")
    assert (view.state, view.pid, view.failure) == (ServerState.STOPPED, None, None)
    assert is_gone(pid)
    assert (await refused(starting)).code is Code.CONFLICT
    # The start was never acknowledged, so there is nothing to remember.
    assert world.database.servers() == {}


async def test_a_request_whose_load_is_stopped_hears_when_to_come_back(world: World) -> None:
    await world.model("a", load_gate=str(world.gate("never")))
    request = asyncio.create_task(ensure(world, "a"))
    await until(lambda: world.starts("a"), "the process has started")
    await world.manager.stop("a")
    error = await refused(request)
    assert error.status == 503
    assert error.retry_after_seconds is not None


async def test_a_request_whose_load_is_replaced_gets_the_new_server(world: World) -> None:
    await world.model("a", load_gate=str(world.gate("never")))
    request = asyncio.create_task(ensure(world, "a"))
    await until(lambda: world.starts("a"), "the process has started")
    world.script("a")
    await world.manager.put("a", ServerPut(flags={"ctx_size": 512}))
    assert (await request).is_ready
    assert len(world.starts("a")) == 2


async def test_stop_of_a_stopped_server_does_nothing(world: World) -> None:
    await world.model("a")
    assert (await world.manager.stop("a")).state is ServerState.STOPPED
    assert world.starts("a") == []


async def test_a_request_brings_back_a_stopped_server(world: World) -> None:
    await world.model("a")
    await world.manager.start("a")
    await world.manager.stop("a")
    assert (await ensure(world, "a")).is_ready
    assert world.database.servers()["a"][0] is Desired.STOPPED


async def test_restart_makes_a_new_process(world: World) -> None:
    await world.model("a")
    first = (await world.manager.start("a")).pid
    second = await world.manager.restart("a")
    assert second.pid != first
    assert first is not None and is_gone(first)
    assert second.restarts == 1


class TestFailure:
    async def test_failed_start_is_refused_quickly_with_retry_after(self, world: World) -> None:
        await world.model("a", exit_in_load=3, complaint="E cannot do it")
        first = await refused(ensure(world, "a"))
        assert first.code is Code.SERVER_START_FAILED
        again = await refused(ensure(world, "a"))
        assert again.code is Code.QUARANTINED and again.status == 503
        assert again.retry_after_seconds is not None and 0 < again.retry_after_seconds <= 10
        assert len(world.starts("a")) == 1
        view = world.manager.view(world.manager.server("a"))
        assert view.state is ServerState.FAILED
        assert view.failure is not None
        assert (view.failure.reason, view.failure.exit_code) == ("exited", 3)
        assert "E cannot do it" in view.failure.message

    async def test_requests_that_come_together_start_it_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that still look at its files when it has failed do not start it again."""
        await world.model("a", exit_in_load=3)
        resolve, turns, late = ModelFiles.resolve, count(), threading.Event()

        def resolved(files: ModelFiles, spec: ModelSpec) -> Resolved:
            if next(turns):
                late.wait(10)
            return resolve(files, spec)

        monkeypatch.setattr(ModelFiles, "resolve", resolved)
        requests = [asyncio.create_task(ensure(world, "a")) for _ in range(3)]
        await until(lambda: state(world, "a") is ServerState.FAILED, "the first start has failed")
        late.set()
        for request in requests:
            assert (await refused(request)).code in (Code.SERVER_START_FAILED, Code.QUARANTINED)
        assert len(world.starts("a")) == 1

    async def test_operator_starts_a_failed_server_at_once(self, world: World) -> None:
        await world.model("a", exit_in_load=3)
        await refused(ensure(world, "a"))
        world.script("a")
        view = await world.manager.start("a")
        assert (view.state, view.failure) == (ServerState.READY, None)
        assert (await ensure(world, "a")).is_ready

    async def test_stop_of_a_failed_server_forgets_the_failure(self, world: World) -> None:
        await world.model("a", exit_in_load=3)
        await refused(ensure(world, "a"))
        view = await world.manager.stop("a")
        assert (view.state, view.failure) == (ServerState.STOPPED, None)
        world.script("a")
        assert (await ensure(world, "a")).is_ready

    async def test_new_flags_for_a_failed_server_count_at_once(self, world: World) -> None:
        await world.model("a", exit_in_load=3)
        await refused(ensure(world, "a"))
        world.script("a")
        await world.manager.put("a", ServerPut(flags={"ctx_size": 512}))
        assert (await ensure(world, "a")).is_ready

    async def test_a_killed_ready_server_is_started_by_the_next_request(self, world: World) -> None:
        await world.model("a")
        server = await ensure(world, "a")
        assert server.child is not None
        server.child.kill()
        await until(lambda: state(world, "a") is ServerState.FAILED, "its end is seen")
        failure = world.manager.view(server).failure
        assert failure is not None
        assert (failure.reason, failure.exit_code) == ("killed", -9)
        assert (await ensure(world, "a")).is_ready

    async def test_a_server_that_keeps_dying_rests(self, world: World) -> None:
        await world.model("a")
        error = None
        for _ in range(5):
            try:
                server = await ensure(world, "a")
            except SlipstreamError as e:
                error = e
                break
            assert server.child is not None
            server.child.kill()
            await until(lambda: state(world, "a") is ServerState.FAILED, "its end is seen")
        assert error is not None
        assert error.status == 503 and error.retry_after_seconds is not None
        assert len(world.starts("a")) < 5

    async def test_message_for_clients_has_no_path(self, world: World) -> None:
        await world.model("a", exit_in_load=1, complaint=f"E failed to load model '{world.folder}/models/a.gguf'")
        first = await refused(ensure(world, "a"))
        second = await refused(ensure(world, "a"))
        assert str(world.folder) not in first.message + second.message

    async def test_log_tail_is_of_the_process_that_failed(self, world: World) -> None:
        await world.model("a", lines=5, complaint="E said by the first")
        await world.manager.start("a")
        world.script("a", exit_in_load=1)
        await refused(world.manager.restart("a"))
        world.script("a", exit_in_load=1)
        await world.manager.stop("a")
        error = await refused(world.manager.start("a"))
        assert "said by the first" not in str(error.details) + error.message

    async def test_a_program_that_cannot_run_is_an_error_of_ours(self, world: World) -> None:
        await world.model("a")
        binary = world.folder / "server"
        shutil.copy(FAKE_SERVER, binary)
        world.manager = world.new_manager(binary)
        await world.manager.start("a")
        await world.manager.stop("a")
        binary.unlink()
        error = await refused(ensure(world, "a"))
        assert error.code is Code.SERVER_START_FAILED
        assert "Traceback" not in error.message
        assert str(world.folder) not in error.message


class TestCatalogue:
    async def test_a_running_server_whose_file_is_gone_can_be_stopped(self, world: World) -> None:
        await world.model("a")
        await world.manager.start("a")
        (world.models_dir / "a.yaml").unlink()
        await world.manager.refresh()
        assert [server.model for server in world.manager.servers()] == ["a"]
        assert (await world.manager.stop("a")).state is ServerState.STOPPED

    async def test_a_new_model_file_is_found_by_a_request(self, world: World) -> None:
        await world.model("a")
        (world.models_dir / "b.yaml").write_text('{"name": "b", "source": {"path": "a.gguf"}}')
        assert (await ensure(world, "b")).is_ready

    async def test_a_request_starts_with_the_settings_of_now(self, world: World) -> None:
        await world.model("a")
        (world.models_dir / "a.yaml").write_text(
            '{"name": "a", "source": {"path": "a.gguf"}, "server": {"ctx_size": 777}}'
        )
        assert "777" in world.manager.view(await ensure(world, "a")).argv

    async def test_a_running_server_whose_file_is_gone_can_be_put_to_rest(self, world: World) -> None:
        await world.model("a")
        await world.manager.start("a")
        (world.models_dir / "a.yaml").unlink()
        plan = await world.manager.put("a", ServerPut(state=Desired.STOPPED), dry_run=True)
        assert isinstance(plan, Plan) and [action.do for action in plan.actions] == ["stop"]
        view = await world.manager.put("a", ServerPut(state=Desired.STOPPED))
        assert isinstance(view, ServerView) and view.state is ServerState.STOPPED

    async def test_of_two_readings_the_later_counts(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        await world.model("a")
        slow = [threading.Event()]

        def load(folder: Path, earlier: Catalog) -> Catalog:
            catalog = load_catalog(folder)
            if slow:
                slow.pop().wait(10)
            return catalog

        gate = slow[0]
        monkeypatch.setattr("orchestrator.servers.manager.load_catalog", load)
        first = asyncio.create_task(world.manager.refresh())
        await until(lambda: not slow, "the first has read")
        second = asyncio.create_task(world.model("b"))
        await asyncio.wait({second}, timeout=0.05)
        gate.set()
        await asyncio.gather(first, second)
        assert set(world.manager.catalog.models) == {"a", "b"}

    async def test_an_unknown_model_names_the_known_ones(self, world: World) -> None:
        await world.model("a")
        error = await refused(ensure(world, "nobody"))
        assert error.code is Code.MODEL_NOT_FOUND
        assert "'nobody'" in error.message and "a" in error.message.split("known models:")[1]

    async def test_new_request_defaults_need_no_restart(self, world: World) -> None:
        await world.model("a")
        before = await world.manager.start("a")
        await world.model("a", {"defaults": {"temperature": 0.5}})
        assert (await world.manager.start("a")).pid == before.pid


class TestOpenAndClose:
    async def test_a_wanted_server_comes_back(self, world: World) -> None:
        await world.model("a")
        await world.model("b")
        await world.manager.put("a", ServerPut(state=Desired.RUNNING, flags={"ctx_size": 512}))
        await ensure(world, "b")
        await world.manager.close()
        world.manager = world.new_manager()
        await world.manager.open()
        await until(lambda: state(world, "a") is ServerState.READY, "a is back")
        assert "512" in world.manager.view(world.manager.server("a")).argv
        assert len(world.starts("b")) == 1

    async def test_a_wanted_flag_that_is_gone_is_told_and_hides_no_other(self, world: World) -> None:
        await world.model("a")
        await world.model("b")
        await world.database.set_server("a", Desired.RUNNING, {"removed-meanwhile": 1})
        await world.database.set_server("b", Desired.RUNNING, {})
        await world.database.set_server("no-file", Desired.RUNNING, {})
        world.manager = world.new_manager()
        await world.manager.open()
        await until(lambda: state(world, "b") is ServerState.READY, "b is up")
        failure = world.manager.view(world.manager.server("a")).failure
        assert failure is not None and "removed-meanwhile" in failure.message

    async def test_close_ends_servers_in_every_state(self, world: World) -> None:
        await world.model("ready")
        await world.model("loading", load_gate=str(world.gate("never")))
        await world.model("failed", exit_in_load=1)
        await world.manager.start("ready")
        await refused(world.manager.start("failed"))
        loading = asyncio.create_task(world.manager.start("loading"))
        await until(lambda: world.starts("loading"), "the process has started")
        await world.manager.close()
        await refused(loading)
        assert all(is_gone(pid) for name in ("ready", "loading") for pid in world.starts(name))

    async def test_nothing_starts_after_close(self, world: World) -> None:
        await world.model("a")
        await world.manager.close()
        assert (await refused(ensure(world, "a"))).code is Code.SHUTTING_DOWN
        assert world.starts("a") == []

    async def test_a_server_that_ignores_term_is_killed(self, tmp_path: Path, fake_flags: FlagTable) -> None:
        async with open_world(tmp_path, fake_flags, stop_timeout_seconds=0.2) as world:
            await world.model("a", ignore_term=True)
            await world.manager.start("a")
            await world.manager.stop("a")
            assert is_gone(world.starts("a")[0])
