"""When a server is ready, asked of the fake llama-server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.schemas import FlagValue, ModelSpec, PathSource, Speculation
from orchestrator.servers.drivers.base import Order
from orchestrator.servers.drivers.process import ProcessDriver
from orchestrator.servers.launch import Launch
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.readiness import NotReady, warm_up
from tests import FAKE_SERVER
from tests.support.scripted import write_script
from tests.unit.conftest import until

NO_GPU = "warning: no usable GPU found, --gpu-layers option will be ignored"


class Warmed:
    """Starts fake servers and warms them up."""

    def __init__(self, folder: Path, client: httpx.AsyncClient) -> None:
        self.folder, self.client = folder, client

    async def __call__(
        self,
        *more: str,
        drafts: bool = False,
        devices: tuple[str, ...] = (),
        said: tuple[str, ...] = (),
        flags: dict[str, FlagValue] | None = None,
        **script: Any,
    ) -> int:
        model = self.folder / "m.gguf"
        write_script(model, script)
        kind = "draft-mtp" if drafts else "none"
        spec = ModelSpec(name="m", source=PathSource(path="m.gguf"), speculation=Speculation(type=kind))
        argv = ("--model", str(model), "--alias", "m", *more)
        launch = Launch(spec, model, None, argv, flags=flags or {})
        driver = ProcessDriver(FAKE_SERVER, self.folder, "test")
        child = await driver.start(Order("m", launch, LogBuffer(100), lambda: None))
        try:
            await until(child.listening.is_set, "it listens")
            return await warm_up(self.client, child, launch, 5.0, devices, said)
        finally:
            await child.stop(5.0)


@pytest.fixture
async def warmed(tmp_path: Path) -> AsyncIterator[Warmed]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield Warmed(tmp_path, client)


async def refused(work: Any) -> NotReady:
    with pytest.raises(NotReady) as caught:
        await work
    return caught.value


async def test_the_number_of_slots_is_told(warmed: Warmed) -> None:
    assert await warmed(slots=3) == 3
    assert await warmed(slots=2, drafts=True, draft_n=4) == 2


@pytest.mark.parametrize("flag", ["--embedding", "--rerank"])
async def test_one_that_generates_nothing_is_not_asked_to(warmed: Warmed, flag: str) -> None:
    assert await warmed(flag, slots=2, generation=500) == 2


async def test_slots_that_draft_nothing_are_named(warmed: Warmed) -> None:
    error = await refused(warmed(drafts=True, slots=3, draft_n=[4, 0, 0]))
    assert error.reason == "no_draft" and "slots 1, 2" in str(error)


async def test_a_generation_that_fails_is_told(warmed: Warmed) -> None:
    assert (await refused(warmed(generation=500))).reason == "not_ready"


@pytest.mark.parametrize(
    "script, said", [({"alias": "another"}, "one of 'another'"), ({"any_key": True}, "takes any key")]
)
async def test_a_stranger_on_the_port_is_no_server_of_ours(warmed: Warmed, script: dict[str, Any], said: str) -> None:
    error = await refused(warmed(**script))
    assert error.reason == "port" and said in str(error)


async def test_a_quiet_run_on_the_processor_is_not_ready(warmed: Warmed) -> None:
    error = await refused(warmed(devices=("CUDA0", "CUDA1"), said=("I srv init", NO_GPU)))
    assert error.reason == "no_accelerator"
    assert str(error) == f"it was to run on CUDA0, CUDA1, and found no accelerator: {NO_GPU}"


@pytest.mark.parametrize(
    "devices, said, flags",
    [((), (NO_GPU,), {}), (("CUDA0",), (NO_GPU,), {"gpu-layers": 0}), (("CUDA0",), ("I srv init",), {})],
    ids=["no device given", "told to", "an accelerator found"],
)
async def test_one_that_expects_no_accelerator_or_has_it_is_ready(
    warmed: Warmed, devices: tuple[str, ...], said: tuple[str, ...], flags: dict[str, FlagValue]
) -> None:
    assert await warmed(devices=devices, said=said, flags=flags) == 1
