"""Hosts as they are opened: what accelerators are expected, and who hears when they are not there."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas.hosts import Accelerators, Rocm
from orchestrator.servers.accelerators import Missing
from orchestrator.servers.drivers.base import HOST, Device
from orchestrator.servers.drivers.process import ProcessDriver
from orchestrator.servers.opening import Opened, Opening, _Candidate

RAM = Device(HOST, HOST, 64 << 30, 60 << 30)
CARD = Device("CUDA0", "cuda", 24 << 30, 23 << 30)


class Machine(ProcessDriver):
    """A driver that only knows its devices; its binary has no libraries beside it, and tells nothing."""

    def __init__(self, *devices: Device) -> None:
        super().__init__(Path("/nowhere/llama-server"), Path("/e"), "me")
        self._devices = devices

    async def open(self) -> None:
        pass

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        return self._devices


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Opened]]:
    async def open_hosts(*devices: Device, **settings: Any) -> Opened:
        monkeypatch.setattr(Opening, "_process", lambda _: Machine(*devices))
        async with replace(Opening(None, Path("/c"), Path("/e"), "me"), **settings).hosts() as found:
            return found

    return open_hosts


@pytest.mark.parametrize(
    "accelerator, memory, devices, expected, is_missing",
    [
        (None, None, (RAM,), 0, False),
        ("cpu", None, (RAM,), 0, False),
        (None, "host=8GiB", (RAM,), 0, False),
        ("cuda", None, (RAM, CARD), 1, False),
        ("cuda", None, (RAM,), 1, True),
        ("rocm", None, (RAM, CARD), 1, True),
        ("rocm", "ROCm0=8GiB,ROCm1=8GiB", (RAM,), 2, True),
        ("cuda", "CUDA0=8GiB,CUDA1=8GiB", (RAM, CARD), 2, False),
        (None, "CUDA0=8GiB", (RAM,), 1, False),
    ],
)
async def test_what_is_expected_and_missing_is_told_in_a_sentence(
    accelerator: str | None,
    memory: str | None,
    devices: tuple[Device, ...],
    expected: int,
    is_missing: bool,
    opened: Callable[..., Awaitable[Opened]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await opened(*devices, accelerator=accelerator, memory=memory)
    host, seen = found.hosts["local"], len(devices) - 1
    assert (host.expected_accelerators, len(host.accelerators)) == (expected, seen)
    told = [(r.levelname, r.getMessage()) for r in caplog.records]
    if is_missing:
        [missing], [(level, text)] = found.missing, told
        assert level == "ERROR" and missing.message in text and str(missing.hint) in text
        assert f"{'CUDA' if accelerator == 'cuda' else 'ROCm'} is expected and not used" in missing.message
        return
    assert found.missing == () and bool(told) is (expected > seen)
    for level, text in told:
        assert level == "WARNING" and f"speak of {expected} accelerators, and llama-server sees {seen}" in text


async def test_a_host_that_is_left_out_for_its_accelerator_is_missing_too(
    opened: Callable[..., Awaitable[Opened]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Machine):
        def __init__(self, reason: str) -> None:
            super().__init__()
            self._reason = reason

        async def open(self) -> None:
            raise SlipstreamError(Code.HOST_FAILED, "why", hint="what to do", details={"reason": self._reason})

    def candidates(*drivers: Machine) -> None:
        found = {str(number): _Candidate(driver, {}, 1) for number, driver in enumerate(drivers)}
        monkeypatch.setattr(Opening, "_candidates", lambda _: found)

    candidates(Machine(RAM, CARD), Broken("no_accelerator"), Broken("engine"))
    found = await opened()
    assert list(found.hosts) == ["0"] and found.missing == (Missing("why", "what to do"),)
    candidates(Broken("no_accelerator"))
    with pytest.raises(SlipstreamError):
        await opened()


@pytest.mark.parametrize(
    "devices, expected",
    [
        (Accelerators(), 0),
        (Accelerators(nvidia="all"), 1),
        (Accelerators(nvidia=("0", "1")), 2),
        (Accelerators(rocm=Rocm(render=("/dev/dri/renderD128",), gids=(44,))), 1),
    ],
)
def test_what_a_hosts_file_declares(devices: Accelerators, expected: int) -> None:
    assert devices.expected == expected
