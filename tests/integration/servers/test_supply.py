"""What is collected and verified while the rest goes on."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code
from orchestrator.jobs import Jobs
from orchestrator.schemas import GcView, JobState, SwapRequest, VerifyRequest
from orchestrator.servers import Supply
from orchestrator.store import Layout, Reference, collect
from orchestrator.store.blobs import Blobs
from orchestrator.store.references import References
from tests.support.stored import store
from tests.unit.conftest import World, refused, until

pytestmark = pytest.mark.integration


@pytest.fixture
def made(world: World, jobs: Jobs) -> Supply:
    return Supply(world.manager, jobs)


@pytest.fixture
def blobs(world: World) -> Blobs:
    return Blobs(world.manager.files.layout.root)


def served(made: Supply) -> set[str]:
    """Names of the files that servers need."""
    return {where.name for where, _ in made._running() if isinstance(where, Path)}


async def test_many_collections_at_once_end(made: Supply, world: World) -> None:
    await world.model("a")
    async with asyncio.timeout(30):
        await asyncio.gather(*(made.collect(dry_run=bool(i % 2)) for i in range(40)))
        await made.inventory()


class TestMeanwhile:
    """Something happens between the plan of a collection and its work."""

    @pytest.fixture
    def after_the_plan(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def hook(work: Any) -> None:
            running = asyncio.get_running_loop()

            def collected(layout: Layout, references: References, *, dry_run: bool) -> GcView:
                pending = [False, True]

                def asked() -> Iterable[Reference]:
                    if pending and pending.pop(0):
                        asyncio.run_coroutine_threadsafe(work(), running).result(10)
                    return references()

                return collect(layout, asked, dry_run=dry_run)

            monkeypatch.setattr("orchestrator.servers.supply.collect", collected)

        return hook

    async def test_a_job_that_brings_files_ends_it(
        self, made: Supply, world: World, blobs: Blobs, jobs: Jobs, after_the_plan: Any
    ) -> None:
        store(blobs, b"content", "url/k/f.gguf")
        gate = asyncio.Event()

        async def submit() -> None:
            await jobs.submit("graft", "x onto y", {"never": "valid"}, key="k")
            gate.set()

        jobs._parallel = 0
        after_the_plan(submit)
        error = await refused(made.collect(dry_run=False))
        assert error.code is Code.CONFLICT and "x onto y" in error.message and gate.is_set()
        assert (blobs.root / "url" / "k" / "f.gguf").is_file()

    async def test_a_model_file_that_breaks_ends_it(
        self, made: Supply, world: World, blobs: Blobs, after_the_plan: Any
    ) -> None:
        store(blobs, b"content", "url/k/f.gguf")

        async def write() -> None:
            (world.models_dir / "a.yaml").write_text("name: [")

        after_the_plan(write)
        error = await refused(made.collect(dry_run=False))
        assert error.code is Code.CONFLICT and "a.yaml" in error.message
        assert (blobs.root / "url" / "k" / "f.gguf").is_file()


async def test_what_may_be_put_back_is_kept(made: Supply, world: World) -> None:
    """While `b` loads in its place, `a` is down, and its model file names other files by now."""
    await world.model("a")
    world.room_for(1)
    await world.manager.start("a")
    assert served(made) == {"a.gguf"}
    world.script("other")
    await world.model("a", {"source": {"path": "other.gguf"}})
    gate = world.gate("load")
    await world.model("b", load_gate=str(gate))
    swap = asyncio.create_task(world.manager.swap(SwapRequest(start="b")))
    await until(lambda: world.starts("b"), "b loads")
    assert world.manager.server("a").is_down
    assert served(made) == {"a.gguf", "b.gguf"}
    gate.touch()
    await swap
    assert served(made) == {"b.gguf"}


async def test_what_was_never_brought_is_missing(made: Supply, world: World, jobs: Jobs) -> None:
    await world.model("a", {"source": {"hf": "o/n", "file": "dir/x.gguf"}, "drafter": {"path": "gone.gguf"}})
    job = await made.verify(VerifyRequest(models=("a",)), idempotency_key=None)
    ended = await jobs.wait(job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    assert ended.result is not None and ended.result["missing"] == ["gone.gguf", "x.gguf"]


async def test_a_graft_whose_base_is_gone_is_kept(made: Supply, world: World, blobs: Blobs) -> None:
    await world.model("a", {"source": {"path": "base.gguf"}, "graft": {"donor": {"path": "donor.gguf"}}})
    for name in ("base", "other"):
        folder = blobs.root / "grafts" / name
        folder.mkdir(parents=True)
        (folder / f"{name}-MTP.gguf").write_bytes(b"grafted")
        (folder / "graft.json").write_text("{}")
    removed = (await made.collect(dry_run=False)).removed
    assert [file.names for file in removed] == [("grafts/other/other-MTP.gguf",)]
