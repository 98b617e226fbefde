"""What the dashboard of machines is to show: this machine as its kernel tells of it, and others' pages worked out."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from ruamel.yaml import YAML

from tests import REPOSITORY
from tests.integration.observability.figures import Expect, Labels, Values, labelled
from tests.integration.observability.places import LOCAL, Key

# What may be found of each series: the least and the greatest value.
Bounds = dict[Labels, tuple[float, float]]
NODE_JOB, OTHERS_JOB = "node", "others"
_HERE = labelled(host=LOCAL)
_PRESSURE = Path("/proc/pressure")
_BEGAN = time.monotonic()

# As the exporters' own documentation shows them, shortened; the container without a name is the whole machine.
_PAGE = """\
container_cpu_usage_seconds_total{{cpu="cpu00",id="/docker/a",name="slipstream"}} {half}
container_cpu_usage_seconds_total{{cpu="cpu01",id="/docker/a",name="slipstream"}} {quarter}
container_cpu_usage_seconds_total{{cpu="total",id="/"}} {double}
container_memory_working_set_bytes{{id="/docker/a",name="slipstream"}} 1.5e+09
container_memory_working_set_bytes{{id="/"}} 9e+09
DCGM_FI_DEV_GPU_UTIL{{gpu="0",modelName="A"}} 37
DCGM_FI_DEV_GPU_UTIL{{gpu="1",modelName="A"}} 0
DCGM_FI_DEV_FB_USED{{gpu="0",modelName="A"}} 30000
DCGM_FI_DEV_FB_FREE{{gpu="0",modelName="A"}} 10000
DCGM_FI_DEV_POWER_USAGE{{gpu="0",modelName="A"}} 212.5
DCGM_FI_DEV_GPU_TEMP{{gpu="0",modelName="A"}} 61
gpu_gfx_activity{{gpu_id="0"}} 82
gpu_used_vram{{gpu_id="0"}} 12288
gpu_total_vram{{gpu_id="0"}} 16384
gpu_power_usage{{gpu_id="0"}} 180
gpu_junction_temperature{{gpu_id="0"}} 74
gpu_edge_temperature{{gpu_id="0"}} 60
gpu_edge_temperature{{gpu_id="1"}} 55
"""


def page_of_others() -> str:
    """What cAdvisor, DCGM's and AMD's exporter tell; the counters grow by half, a quarter and two a second."""
    seconds = time.monotonic() - _BEGAN
    return _PAGE.format(half=0.5 * seconds, quarter=0.25 * seconds, double=2 * seconds)


def node_exporter_flags() -> list[str]:
    """The collectors that docker/exporters.yaml switches on, here outside a container."""
    services = YAML(typ="safe").load(REPOSITORY / "docker" / "exporters.yaml")["services"]
    return [flag for flag in services["node-exporter"]["command"] if flag.startswith("--collector") and "$" not in flag]


def _share_in_use() -> float:
    kilobytes = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {name: int(kilobytes[name].split()[0]) for name in ("MemTotal", "MemAvailable")}
    return 1 - sizes["MemAvailable"] / sizes["MemTotal"]


def _memory() -> Bounds:
    share = _share_in_use()
    return {_HERE: (share - 0.1, share + 0.1)}


def _load() -> Bounds:
    """It was measured up to five seconds and one scrape ago."""
    load = os.getloadavg()[0]
    return {_HERE: (load - 2, load + 2)}


def _room() -> Bounds:
    """On the file system of the root; the others are those that the exporter sees."""
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == "/")
    status = os.statvfs("/")
    free = status.f_bavail * status.f_frsize
    return {labelled(host=LOCAL, device=device): (0.9 * free, 1.1 * free)}


def _share() -> Bounds:
    return {_HERE: (0.0, 1.0)}


def _waiting() -> Bounds:
    """Not every kernel tells."""
    return _share() if _PRESSURE.exists() else {}


def _rate() -> Bounds:
    return {_HERE: (0.0, 1e11)} if Path("/proc/diskstats").read_text().strip() else {}


def _processors() -> Bounds:
    count = float(os.cpu_count() or 0)
    return {_HERE: (count, count)}


NODE: dict[Key, Callable[[], Bounds]] = {
    Key("machines", "Processor", "A"): _share,
    Key("machines", "Memory", "A"): _memory,
    Key("machines", "Waiting", "A"): _waiting,
    Key("machines", "Waiting", "B"): _waiting,
    Key("machines", "Waiting", "C"): _waiting,
    Key("machines", "Disks read", "A"): _rate,
    Key("machines", "Room left", "A"): _room,
    Key("machines", "Load", "A"): _load,
    Key("machines", "Load", "B"): _processors,
}


def _nvidia(gpu: int, value: float) -> Values:
    return {labelled(host=LOCAL, gpu=gpu, modelName="A"): value}


def _amd(gpu: int, value: float) -> Values:
    return {labelled(host=LOCAL, gpu_id=gpu): value}


OTHERS: dict[Key, Expect] = {
    Key("machines", "Processors in use", "A"): lambda _: {labelled(host=LOCAL, name="slipstream"): 0.75},
    Key("machines", "Memory in use", "A"): lambda _: {labelled(host=LOCAL, name="slipstream"): 1.5e9},
    Key("machines", "Accelerators at work", "A"): lambda _: _nvidia(0, 0.37) | _nvidia(1, 0),
    Key("machines", "Accelerators at work", "B"): lambda _: _amd(0, 0.82),
    Key("machines", "Memory of accelerators", "A"): lambda _: _nvidia(0, 0.75),
    Key("machines", "Memory of accelerators", "B"): lambda _: _amd(0, 0.75),
    Key("machines", "Power", "A"): lambda _: _nvidia(0, 212.5),
    Key("machines", "Power", "B"): lambda _: _amd(0, 180),
    Key("machines", "Temperature", "A"): lambda _: _nvidia(0, 61),
    Key("machines", "Temperature", "B"): lambda _: _amd(0, 74) | _amd(1, 55),
}
