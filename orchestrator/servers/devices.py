"""Accelerators as llama-server itself sees them, and the RAM of this machine."""

import re
from pathlib import Path

from orchestrator.servers.cgroups import memory_limit_bytes
from orchestrator.servers.drivers.base import HOST, Device

_MIB = 1 << 20
# `  CUDA0: NVIDIA GeForce RTX 5090 (32109 MiB, 31500 MiB free)`: common_print_available_devices in common/arg.cpp.
_DEVICE = re.compile(
    r"^ {2}(?P<name>(?P<kind>[A-Za-z]+)\S*): .* \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$", re.M
)
# Names as the backends give them (ggml/src/ggml-*: GGML_CUDA_NAME is CUDA, ROCm or MUSA).
_KINDS = {"hip": "rocm", "mtl": "metal"}


def parse_devices(text: str) -> tuple[Device, ...]:
    """The accelerators of `llama-server --list-devices`; those that compute on the processor (BLAS) are none."""
    found = []
    for match in _DEVICE.finditer(text):
        # Those without memory of their own say 0, and are no place for weights.
        if total := int(match["total"]):
            kind = match["kind"].lower()
            found.append(Device(match["name"], _KINDS.get(kind, kind), total * _MIB, int(match["free"]) * _MIB))
    return tuple(found)


def host_memory() -> Device:
    """RAM of this machine, or what the control group of this process may have of it."""
    facts = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) << 10
    total, limit = facts["MemTotal"], memory_limit_bytes()
    if limit is not None:
        total = min(total, limit)
    return Device(HOST, HOST, total, min(total, facts["MemAvailable"]))
