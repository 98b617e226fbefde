"""What servers are taken to hold, and what was measured of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.db import Database
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.contents import Contents, contents_of_file
from orchestrator.gguf.memory import Setup, estimate_memory
from orchestrator.schemas import FlagValue, MemoryEstimate, ModelSpec, PathSource, Place, Speculation
from orchestrator.servers import estimates, memory
from orchestrator.servers.drivers.base import Device
from orchestrator.servers.files import ModelFiles, Resolved
from orchestrator.servers.memory import Observed, budgets, measure, needs, parse_memory, until_back
from tests.toys import write_architecture, write_hybrid, write_mtp, write_pair

MIB, GIB = 1 << 20, 1 << 30
PROCESS = 40 * MIB
RAM = Device("host", "host", 64 * GIB, 60 * GIB)
CARD, TWIN = Device("CUDA0", "cuda", 24 * GIB, 23 * GIB), Device("CUDA1", "cuda", 24 * GIB, 23 * GIB)


def resolved(folder: Path, kind: str = "none", drafter: bool = False) -> Resolved:
    files = {"source": PathSource(path="m.gguf")} | ({"drafter": PathSource(path="d.gguf")} if drafter else {})
    spec = ModelSpec(name="m", speculation=Speculation(type=kind), **files)
    return ModelFiles(folder, folder).resolve(spec)


def needed(found: Resolved, devices: tuple[Device, ...] = (RAM,), **flags: Any) -> dict[str, int]:
    return needs(found, {name.replace("_", "-"): value for name, value in flags.items()}, devices, Place())


def told(path: Path, setup: Setup) -> MemoryEstimate:
    found = estimate_memory(contents_of_file(path), setup)
    assert found is not None
    return found


@pytest.fixture
def mtp(tmp_path: Path) -> Path:
    write_mtp(tmp_path / "m.gguf")
    return tmp_path


def test_on_the_processor_everything_is_ram(mtp: Path) -> None:
    size = told(mtp / "m.gguf", Setup(4096, 1, draft_tokens=3))
    without_head = size.weights_bytes + size.kv_bytes + size.compute_bytes
    assert needed(resolved(mtp), ctx_size=4096, parallel=1) == {"host": PROCESS + without_head}
    with_head = without_head + size.head_bytes + size.head_kv_bytes
    assert needed(resolved(mtp, "draft-mtp"), ctx_size=4096, parallel=1) == {"host": PROCESS + with_head}
    assert needed(resolved(mtp), (RAM, CARD), ctx_size=4096, parallel=1, gpu_layers=0) == {
        "host": PROCESS + without_head
    }


@pytest.mark.parametrize(
    "flags, setup",
    [
        # --parallel -1 is 4 slots in one buffer of what the model was trained with.
        ({}, Setup(8192, 4, True)),
        ({"parallel": 2}, Setup(2 * 8192, 2)),
        ({"parallel": 2, "kv_unified": True}, Setup(8192, 2, True)),
        ({"parallel": "2", "ctx_size": "2048"}, Setup(2048, 2)),
        ({"kv_unified_per_slot": 1024}, Setup(4096, 4, True)),
        ({"ctx_size": 2048, "parallel": 1, "ubatch_size": 64}, Setup(2048, 1, batch_tokens=64)),
    ],
)
def test_context_and_slots_are_as_the_pinned_server_takes_them(
    mtp: Path, flags: dict[str, FlagValue], setup: Setup
) -> None:
    size = told(mtp / "m.gguf", setup)
    assert needed(resolved(mtp), (RAM,), **flags) == {
        "host": PROCESS + size.weights_bytes + size.kv_bytes + size.compute_bytes
    }


def test_a_quantised_cache_is_smaller(mtp: Path) -> None:
    plain = needed(resolved(mtp), ctx_size=8192)["host"]
    assert needed(resolved(mtp), ctx_size=8192, cache_type_k="q8_0", cache_type_v="q8_0")["host"] < plain


def test_a_drafter_is_counted_with_the_context_of_its_target(tmp_path: Path) -> None:
    write_pair(tmp_path / "m.gguf", tmp_path / "d.gguf")
    target = told(tmp_path / "m.gguf", Setup(2048, 1, draft_tokens=3))
    drafter = told(tmp_path / "d.gguf", Setup(2048, 1))
    found = needed(resolved(tmp_path, "draft-simple", drafter=True), ctx_size=2048, parallel=1)
    assert found == {"host": PROCESS + target.total_bytes + drafter.total_bytes}


def test_a_hybrid_has_states_and_larger_graphs(tmp_path: Path) -> None:
    write_hybrid(tmp_path / "m.gguf")
    size = told(tmp_path / "m.gguf", Setup(2048, 2, draft_tokens=3))
    found = needed(resolved(tmp_path, "draft-mtp"), ctx_size=2048, parallel=2)
    assert found == {"host": PROCESS + 64 * MIB + size.total_bytes}
    assert size.recurrent_bytes > 0


def test_what_the_model_file_says_goes_before_all(mtp: Path) -> None:
    place = Place(memory={"host": 5, "CUDA0": 7})
    assert needs(resolved(mtp), {}, (RAM, CARD), place, {"host": 1000}) == {"host": 5, "CUDA0": 7}


def test_headers_are_read_once_for_each_state_of_a_file(mtp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def read(path: Path) -> Contents:
        reads.append(path)
        return contents_of_file(path)

    monkeypatch.setattr(estimates, "contents_of_file", read)
    found = resolved(mtp)
    first = needed(found, parallel=3)
    assert needed(found, parallel=3) == first and len(reads) == 1
    write_architecture("hy_v3", mtp / "m.gguf")
    assert needed(resolved(mtp), parallel=3) != first and len(reads) == 2


def test_what_was_measured_replaces_the_estimate_but_not_the_weights(mtp: Path) -> None:
    found = resolved(mtp)
    size = told(mtp / "m.gguf", Setup(8192, 4, True))
    assert needs(found, {}, (RAM,), Place(), {"host": 123 * MIB}) == {"host": 123 * MIB}
    assert needs(found, {}, (RAM,), Place(), {"host": 1}) == {"host": size.weights_bytes}
    estimate = needed(found, (RAM, CARD))
    only_ram = needs(found, {}, (RAM, CARD), Place(), {"host": 900 * MIB})
    assert only_ram == {"host": 900 * MIB, "CUDA0": estimate["CUDA0"]}


class Machine:
    """A driver and a child whose accelerators have so much free, one reading after the other."""

    def __init__(self, *free: int, ram: int | None = 5) -> None:
        self.free, self.ram = list(free), ram

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        free = self.free.pop(0) if len(self.free) > 1 else self.free[0]
        return RAM, replace(CARD, free_bytes=free)

    async def host_bytes(self) -> int | None:
        return self.ram


@pytest.mark.parametrize(
    "machine, before, held",
    [
        (Machine(70), (RAM, replace(CARD, free_bytes=100)), {"host": 5, "CUDA0": 30}),
        (Machine(70), (), {"host": 5}),
        (Machine(70, ram=None), (RAM,), {}),
        # Somebody else has gone meanwhile.
        (Machine(200), (replace(CARD, free_bytes=100),), {"host": 5, "CUDA0": 0}),
    ],
)
async def test_what_a_server_holds_is_measured(machine: Any, before: tuple[Device, ...], held: dict[str, int]) -> None:
    assert await measure(machine.devices, machine, before) == held


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_POLL_SECONDS", 0.001)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "free, is_back", [((10, 10, 40, 95), True), ((10, 90), True), ((10, 89), False), ((10,), False)]
)
async def test_memory_is_waited_for(free: tuple[int, ...], is_back: bool) -> None:
    machine: Any = Machine(*free)
    before = (replace(CARD, free_bytes=10),)
    # 80 of the 100 it held must have come back.
    assert await until_back(machine.devices, before, {"host": 7, "CUDA0": 100}, lambda: True, 0.1) is is_back


@pytest.mark.usefixtures("quick")
async def test_memory_is_not_waited_for_where_nothing_can_be_told() -> None:
    machine: Any = Machine(10)
    before = (replace(CARD, free_bytes=10),)
    assert await until_back(machine.devices, before, {"CUDA0": 100}, lambda: False, 60.0) is False
    assert await until_back(machine.devices, (), {"CUDA0": 100}, lambda: True, 60.0) is True


async def test_what_was_measured_outlives_a_restart(tmp_path: Path) -> None:
    with Database(tmp_path) as db:
        observed = Observed(db)
        assert observed.needs("a", "local") is None and observed.load_seconds("a", "local") is None
        await observed.record("a", "local", {"host": 10, "CUDA0": 5}, 2.0)
        await observed.record("a", "local", {"host": 7, "CUDA0": 6}, 3.0)
        await observed.record("a", "far", {"host": 1}, 1.0)
    with Database(tmp_path) as db:
        observed = Observed(db)
        assert observed.needs("a", "local") == {"host": 10, "CUDA0": 6}
        assert observed.load_seconds("a", "local") == 3.0
        assert observed.needs("a", "far") == {"host": 1}


def test_budgets_are_as_configured_or_as_free() -> None:
    assert budgets((RAM, CARD, TWIN), {"CUDA1": 5 * GIB}) == {
        "host": int(64 * GIB * 0.9),
        "CUDA0": 23 * GIB,
        "CUDA1": 5 * GIB,
    }
    assert budgets((RAM,), {"host": 70 * GIB}) == {"host": 70 * GIB}


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("", {}),
        ("host=24GiB,CUDA0=30GiB", {"host": 24 * GIB, "CUDA0": 30 * GIB}),
        (" host = 1.5GiB , CUDA0=512 MiB ", {"host": 3 * GIB // 2, "CUDA0": 512 * MIB}),
        ("host=1048576,ROCm1=1TiB", {"host": MIB, "ROCm1": 1 << 40}),
        ("host=100KiB", {"host": 100 << 10}),
    ],
)
def test_sizes_of_devices(text: str, sizes: dict[str, int]) -> None:
    assert parse_memory(text) == sizes


@pytest.mark.parametrize(
    "text, said",
    [
        ("host", "'host' is no size of a device"),
        ("host=", "'host='"),
        ("=4GiB", "'=4GiB'"),
        ("host=4GB", "'host=4GB'"),
        ("host=-1", "'host=-1'"),
        ("host=0", "'host=0' gives it nothing"),
        ("host=1GiB,host=2GiB", "'host' is named twice"),
        ("host=many", "'host=many'"),
    ],
)
def test_what_is_wrong_with_a_size_is_said(text: str, said: str) -> None:
    with pytest.raises(SlipstreamError) as caught:
        parse_memory(text)
    assert caught.value.code is Code.MISCONFIGURED and said in caught.value.message
