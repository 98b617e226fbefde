"""Failures of the built llama-server, provoked and told apart."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.schemas import Failure, ModelSpec, PathSource
from orchestrator.servers.drivers.base import Order
from orchestrator.servers.drivers.process import ProcessDriver
from orchestrator.servers.drivers.process_child import ProcessChild
from orchestrator.servers.failures import on_processor
from orchestrator.servers.launch import Launch
from orchestrator.servers.logs import LogBuffer
from tests.toys import write_mtp, write_pair

pytestmark = pytest.mark.integration
TOO_LITTLE_BYTES = 900_000_000
DEADLINE_SECONDS = 60.0


class Starter:
    """Starts the built server with a model and more arguments, until it ends or listens."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.log = LogBuffer(500)

    def bounded(self) -> "Starter":
        """With an address space that the kernel gives no more of, as a machine without memory would."""
        bound = self.folder / "bounded"
        bound.write_text(f'#!/bin/sh\nexec prlimit --as={TOO_LITTLE_BYTES} {self.binary} "$@"\n')
        bound.chmod(0o755)
        return Starter(bound, self.folder)

    async def ended(self, model: Path, *more: str) -> Failure:
        child = await self._start(model, *more)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await child.exited.wait()
            return child.failure()
        finally:
            await child.stop(5.0)

    async def listening(self, model: Path, *more: str) -> tuple[str, ...]:
        """Its log when it listens."""
        child = await self._start(model, *more)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await child.listening.wait()
            return self.log.tail(500)
        finally:
            await child.stop(5.0)

    async def _start(self, model: Path, *more: str) -> ProcessChild:
        spec = ModelSpec(name="m", source=PathSource(path="m.gguf"))
        argv = ("--model", str(model), "--offline", "--threads", "1", "--spec-draft-threads", "1", *more)
        order = Order("m", Launch(spec, model, None, argv), self.log, lambda: None)
        return await ProcessDriver(self.binary, self.folder, "test").start(order)


@pytest.fixture
def starter(patched_server: Path, tmp_path: Path) -> Starter:
    write_mtp(tmp_path / "m.gguf")
    return Starter(patched_server, tmp_path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_file_that_is_no_gguf(starter: Starter) -> None:
    bad = starter.folder / "bad.gguf"
    bad.write_bytes(b"none" * 1000)
    failure = await starter.ended(bad)
    assert (failure.reason, failure.exit_code) == ("bad_file", 1) and "invalid magic" in failure.message


async def test_a_file_that_was_cut(starter: Starter) -> None:
    cut = starter.folder / "cut.gguf"
    cut.write_bytes((starter.folder / "m.gguf").read_bytes()[:600_000])
    failure = await starter.ended(cut)
    assert failure.reason == "bad_file" and "not within the file bounds" in failure.message


async def test_a_file_that_is_gone(starter: Starter) -> None:
    assert (await starter.ended(starter.folder / "gone.gguf")).reason == "bad_file"


async def test_a_drafter_without_a_head(starter: Starter) -> None:
    write_pair(starter.folder / "t.gguf", starter.folder / "d.gguf")
    drafter = ("--spec-draft-model", str(starter.folder / "d.gguf"), "--spec-type", "draft-mtp")
    failure = await starter.ended(starter.folder / "t.gguf", *drafter)
    assert failure.reason == "bad_file" and "doesn't contain MTP layers" in failure.message


@pytest.mark.parametrize("more", [("--no-such-flag",), ("--ctx-size", "many"), ("--flash-attn", "maybe")])
async def test_an_argument_it_does_not_know(starter: Starter, more: tuple[str, ...]) -> None:
    failure = await starter.ended(starter.folder / "m.gguf", *more)
    assert failure.reason == "unknown_argument" and more[0] in failure.message


async def test_a_port_that_is_taken(starter: Starter, taken_port: int) -> None:
    failure = await starter.ended(starter.folder / "m.gguf", "--port", str(taken_port))
    assert failure.reason == "port" and str(taken_port) in failure.message


async def test_a_context_that_memory_has_no_room_for(starter: Starter) -> None:
    failure = await starter.bounded().ended(starter.folder / "m.gguf", "--ctx-size", "2000000", "--parallel", "1")
    assert failure.reason == "out_of_memory"


async def test_a_device_that_is_not_there(starter: Starter) -> None:
    failure = await starter.ended(starter.folder / "m.gguf", "--device", "CUDA0")
    assert failure.reason == "no_accelerator" and "invalid device: CUDA0" in failure.message


async def test_a_quiet_run_on_the_processor_is_said_in_the_log(starter: Starter) -> None:
    assert on_processor(await starter.listening(starter.folder / "m.gguf")) is None
    assert on_processor(await starter.listening(starter.folder / "m.gguf", "--gpu-layers", "auto")) is not None
