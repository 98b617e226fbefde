"""Which device holds what; 1 GiB is left free by --fit, and a context takes 400 MiB of a device, 300 MiB of RAM."""

from typing import Any

import pytest

from orchestrator.servers.drivers.base import Device
from orchestrator.servers.spread import CONTEXT_BYTES, Load, spread

MIB, GIB = 1 << 20, 1 << 30
RAM = Device("host", "host", 64 * GIB, 60 * GIB)
CARD, TWIN = Device("CUDA0", "cuda", 24 * GIB, 20 * GIB), Device("CUDA1", "cuda", 24 * GIB, 10 * GIB)
PROCESS, IN_RAM = 40 * MIB, 340 * MIB
# 9 layers, of which 5 GiB are experts; its embeddings are no output.
MODEL = Load(weights=9 * GIB, experts=5 * GIB, embeddings=GIB, cache=2 * GIB, compute=100 * MIB, blocks=8)
PLAIN = Load(weights=8 * GIB, is_tied=False, blocks=7)


def needs(load: Load, *devices: Device, **flags: Any) -> dict[str, int]:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return spread(load, PROCESS, named, (RAM, *devices)).needs


@pytest.mark.parametrize(
    "devices, flags",
    [((), {}), ((CARD,), {"gpu_layers": 0}), ((CARD,), {"device": "none"}), ((CARD,), {"device": "CUDA7"})],
)
def test_without_an_accelerator_all_is_ram(devices: tuple[Device, ...], flags: dict[str, Any]) -> None:
    assert needs(MODEL, *devices, **flags) == {"host": PROCESS + 11 * GIB + 100 * MIB}


@pytest.mark.parametrize("layers", [None, "auto", "all", 99, "99", -1])
def test_what_fits_lies_on_the_accelerator_and_the_embeddings_in_ram(layers: Any) -> None:
    flags = {} if layers is None else {"gpu_layers": layers}
    assert needs(MODEL, CARD, **flags) == {
        "host": IN_RAM + 100 * MIB + GIB,
        "CUDA0": CONTEXT_BYTES + 100 * MIB + 10 * GIB,
    }


def test_embeddings_that_are_the_output_too_are_there_twice() -> None:
    tied = Load(weights=9 * GIB, embeddings=GIB, is_tied=True, blocks=8)
    assert needs(tied, CARD) == {"host": IN_RAM + GIB, "CUDA0": CONTEXT_BYTES + 9 * GIB}


def test_some_layers_on_the_accelerator() -> None:
    assert needs(PLAIN, CARD, gpu_layers=4) == {"host": IN_RAM + 4 * GIB, "CUDA0": CONTEXT_BYTES + 4 * GIB}


def test_fit_leaves_in_ram_what_the_accelerator_has_no_room_for() -> None:
    large = Load(weights=30 * GIB, blocks=10)
    found = needs(large, CARD)
    assert found["CUDA0"] == 19 * GIB
    assert found["host"] == IN_RAM + 30 * GIB - (19 * GIB - CONTEXT_BYTES)


@pytest.mark.parametrize(
    "flags",
    [
        {"gpu_layers": 99},
        {"fit": "off"},
        {"fit": False},
        {"split_mode": "tensor"},
        {"split_mode": "row"},
        {"tensor_split": "1"},
        {"override_tensor": "x=CPU"},
    ],
)
def test_fit_does_not_step_in_where_an_operator_has_decided(flags: dict[str, Any]) -> None:
    assert needs(Load(weights=30 * GIB, blocks=10), CARD, **flags)["CUDA0"] == CONTEXT_BYTES + 30 * GIB


def test_several_accelerators_share_by_what_is_free() -> None:
    found = needs(PLAIN, CARD, TWIN)
    first, second = found["CUDA0"] - CONTEXT_BYTES, found["CUDA1"] - CONTEXT_BYTES
    assert first + second == pytest.approx(8 * GIB, abs=2)
    assert first / second == pytest.approx((20 * GIB - CONTEXT_BYTES) / (10 * GIB - CONTEXT_BYTES))


@pytest.mark.parametrize("split", ["3,1", "3/1", "0.75,0.25"])
def test_or_as_they_are_told(split: str) -> None:
    found = needs(PLAIN, CARD, TWIN, tensor_split=split)
    assert found == {"host": IN_RAM, "CUDA0": CONTEXT_BYTES + 6 * GIB, "CUDA1": CONTEXT_BYTES + 2 * GIB}


@pytest.mark.parametrize(
    "flags",
    [{"split_mode": "none", "main_gpu": 1}, {"device": "CUDA1"}, {"tensor_split": "0,1"}],
)
def test_one_of_several(flags: dict[str, Any]) -> None:
    assert needs(PLAIN, CARD, TWIN, **flags) == {"host": IN_RAM, "CUDA1": CONTEXT_BYTES + 8 * GIB}


@pytest.mark.parametrize(
    "flags, in_ram", [({"cpu_moe": True}, 5), ({"n_cpu_moe": 99}, 5), ({"n_cpu_moe": 4}, 2.5), ({"cpu_moe": False}, 0)]
)
def test_experts_in_ram(flags: dict[str, Any], in_ram: float) -> None:
    found = needs(MODEL, CARD, **flags)
    assert found["host"] == IN_RAM + 100 * MIB + (1 + in_ram) * GIB
    assert found["CUDA0"] == CONTEXT_BYTES + 100 * MIB + (10 - in_ram) * GIB


def test_the_cache_in_ram() -> None:
    found = needs(MODEL, CARD, kv_offload=False)
    assert found["host"] == IN_RAM + 100 * MIB + 3 * GIB
    assert found["CUDA0"] == CONTEXT_BYTES + 100 * MIB + 8 * GIB


def test_weights_are_the_least_that_can_be() -> None:
    shares = spread(MODEL, PROCESS, {}, (RAM, CARD))
    assert shares.weights == {"host": GIB, "CUDA0": 8 * GIB}


def test_a_card_without_room_takes_nothing_and_ram_takes_all() -> None:
    full = Device("CUDA0", "cuda", 24 * GIB, 0)
    assert needs(PLAIN, full) == {"host": IN_RAM + 8 * GIB, "CUDA0": CONTEXT_BYTES}
