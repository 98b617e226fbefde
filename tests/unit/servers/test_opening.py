"""Hosts as they are opened: what accelerators are expected, and who hears when they are not there."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.schemas.hosts import Accelerators, Rocm
from orchestrator.servers.drivers.base import HOST, Device
from orchestrator.servers.opening import Opening

RAM = Device(HOST, HOST, 64 << 30, 60 << 30)
CARD = Device("CUDA0", "cuda", 24 << 30, 23 << 30)


class Machine:
    """A driver that only knows its devices."""

    def __init__(self, *devices: Device) -> None:
        self._devices = devices

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        return self._devices


@pytest.mark.parametrize(
    "accelerator, memory, devices, expected",
    [
        (None, None, (RAM,), 0),
        ("cpu", None, (RAM,), 0),
        (None, "host=8GiB", (RAM,), 0),
        ("cuda", None, (RAM, CARD), 1),
        ("cuda", None, (RAM,), 1),
        ("rocm", "ROCm0=8GiB,ROCm1=8GiB", (RAM,), 2),
    ],
)
async def test_what_is_expected_and_missing_is_told_in_a_sentence(
    accelerator: str | None,
    memory: str | None,
    devices: tuple[Device, ...],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Opening, "_process", lambda _: Machine(*devices))
    opening = replace(Opening(None, Path("/c"), Path("/e"), "me"), accelerator=accelerator, memory=memory)
    with caplog.at_level(logging.WARNING):
        async with opening.hosts() as hosts:
            host = hosts["local"]
    seen = len(devices) - 1
    assert (host.expected_accelerators, len(host.accelerators)) == (expected, seen)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert bool(warnings) is (expected > seen)
    for warning in warnings:
        assert f"GPU expected and not used: settings or the hosts file speak of {expected}, llama-server" in warning


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
