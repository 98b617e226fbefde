from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.servers import devices
from orchestrator.servers.devices import host_memory, parse_devices
from orchestrator.servers.drivers.base import Device

MIB = 1 << 20


def accelerators(*lines: str) -> tuple[Device, ...]:
    return parse_devices("\n".join(["Available devices:", *lines]) + "\n")


@pytest.mark.parametrize(
    "line, name, kind, total, free",
    [
        ("  CUDA0: NVIDIA GeForce RTX 5090 (32109 MiB, 31500 MiB free)", "CUDA0", "cuda", 32109, 31500),
        ("  ROCm1: AMD Instinct MI50/MI60 (32752 MiB, 32706 MiB free)", "ROCm1", "rocm", 32752, 32706),
        ("  HIP0: AMD Radeon VII (16368 MiB, 16000 MiB free)", "HIP0", "rocm", 16368, 16000),
        ("  Vulkan0: NVIDIA: a name (with brackets) (8188 MiB, 8000 MiB free)", "Vulkan0", "vulkan", 8188, 8000),
        ("  SYCL0: Intel(R) Arc(TM) A770 Graphics (15473 MiB, 0 MiB free)", "SYCL0", "sycl", 15473, 0),
        ("  MTL0: Apple M4 Max (98304 MiB, 98303 MiB free)", "MTL0", "metal", 98304, 98303),
        ("  Metal: Apple M1 (10922 MiB, 10921 MiB free)", "Metal", "metal", 10922, 10921),
        ("  RPC0[10.0.0.1:50052]: a card (1 MiB, 1 MiB free)", "RPC0[10.0.0.1:50052]", "rpc", 1, 1),
    ],
)
def test_names_kinds_and_sizes(line: str, name: str, kind: str, total: int, free: int) -> None:
    assert accelerators(line) == (Device(name, kind, total * MIB, free * MIB),)


def test_all_of_them_in_order_and_nothing_that_a_backend_says_beside() -> None:
    found = accelerators(
        "ggml_cuda_init: found 2 CUDA devices:",
        "  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes",
        "  CUDA0: NVIDIA GeForce RTX 3090 (24000 MiB, 23000 MiB free)",
        "  CUDA1: NVIDIA GeForce RTX 3090 (24000 MiB, 22000 MiB free)",
        "  BLAS: OpenBLAS (0 MiB, 0 MiB free)",
    )
    assert [d.name for d in found] == ["CUDA0", "CUDA1"]


def test_none_is_none() -> None:
    assert accelerators("  (none)") == () == parse_devices("")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int | None]]:
    """The bound of our control group, to be set."""
    limit: list[int | None] = [None]
    monkeypatch.setattr(devices, "memory_limit_bytes", lambda: limit[0])
    yield limit


def test_ram_is_what_the_machine_has_or_what_our_group_may_have_of_it(bound: list[int | None]) -> None:
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    ram = int(told["MemTotal"].split()[0]) << 10
    whole = host_memory()
    assert (whole.name, whole.kind, whole.total_bytes) == ("host", "host", ram)
    assert 0 < whole.free_bytes <= ram
    bound[0] = 64 * MIB
    assert host_memory() == Device("host", "host", 64 * MIB, 64 * MIB)
    bound[0] = 1 << 62
    assert host_memory().total_bytes == ram
