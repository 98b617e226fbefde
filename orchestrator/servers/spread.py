"""Which device holds what of a server: pure arithmetic after llama-server's own rules.

Sources in the pinned llama.cpp: src/llama-model.cpp load_tensors (layers to devices), common/fit.cpp (what --fit leaves
in RAM, and when it does not step in), common/arg.cpp (defaults).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.schemas import FlagValue
from orchestrator.servers.drivers.base import HOST, Device

_MIB = 1 << 20
# Of a CUDA or ROCm context: on its device, and in RAM. Not measured here, where there is none; usual figures.
CONTEXT_BYTES = 400 * _MIB
_CONTEXT_RAM_BYTES = 300 * _MIB
# --fit-target: what --fit leaves free on each device.
_FIT_MARGIN_BYTES = 1024 * _MIB


@dataclass(frozen=True)
class Load:
    """What a server holds, bytes. `experts` and `embeddings` are parts of `weights`; `blocks` counts its layers.

    `embeddings` stay in RAM wherever the rest goes; where they are the output too (`is_tied`) there are two of them.
    """

    weights: int = 0
    experts: int = 0
    embeddings: int = 0
    is_tied: bool = False
    cache: int = 0
    compute: int = 0
    blocks: int = 0


@dataclass(frozen=True)
class Shares:
    """Bytes by device: all of it, and the weights alone, below which no measurement can be right."""

    needs: dict[str, int]
    weights: dict[str, int]


def spread(load: Load, process_bytes: int, flags: Mapping[str, FlagValue], devices: Sequence[Device]) -> Shares:
    """Shares of a load. `free_bytes` of an accelerator is what may be used of it."""
    chosen = _chosen(flags, [d for d in devices if d.is_accelerator])
    layers = whole_number(flags.get("gpu-layers"))
    if not chosen or layers == 0:
        return Shares({HOST: process_bytes + load.weights + load.cache + load.compute}, {HOST: load.weights})
    part = 1.0 if layers is None or layers < 0 else min(1.0, layers / (load.blocks + 1))
    experts = _experts_in_ram(load, flags)
    weights = int((load.weights - experts - (0 if load.is_tied else load.embeddings)) * part)
    cache = 0 if flags.get("kv-offload") is False else int(load.cache * part)
    room = {d.name: max(0, d.free_bytes - CONTEXT_BYTES - load.compute) for d in chosen}
    if layers is None and _fits(flags):
        most = sum(max(0, size - _FIT_MARGIN_BYTES) for size in room.values())
        if weights + cache > most:
            # --fit leaves whole layers in RAM, each with its part of the cache.
            weights, cache = (most * size // (weights + cache) for size in (weights, cache))
    shares = _proportions(flags, chosen, room)
    in_ram = load.weights - weights if not load.is_tied else max(load.embeddings, load.weights - weights)
    held = {name: int(weights * share) for name, share in shares.items()}
    needs = {
        name: CONTEXT_BYTES + load.compute + held[name] + int(cache * share) for name, share in shares.items() if share
    }
    on_host = process_bytes + _CONTEXT_RAM_BYTES + load.compute + in_ram + load.cache - cache
    return Shares({HOST: on_host} | needs, {HOST: in_ram} | {name: held[name] for name in needs})


def whole_number(value: FlagValue | None) -> int | None:
    """The number a flag is set to; None for a word such as `auto`, and for none."""
    try:
        return None if value is None or isinstance(value, bool) else int(float(value))
    except ValueError:
        return None


def _chosen(flags: Mapping[str, FlagValue], accelerators: list[Device]) -> list[Device]:
    named = flags.get("device")
    if named is not None:
        names = str(named).split(",")
        accelerators = [d for name in names for d in accelerators if d.name == name]
    if flags.get("split-mode") == "none":
        first = whole_number(flags.get("main-gpu")) or 0
        return accelerators[first : first + 1] if first >= 0 else []
    return accelerators


def _experts_in_ram(load: Load, flags: Mapping[str, FlagValue]) -> int:
    if flags.get("cpu-moe"):
        return load.experts
    layers = whole_number(flags.get("n-cpu-moe")) or 0
    return load.experts * min(layers, load.blocks) // load.blocks if load.blocks else 0


def _fits(flags: Mapping[str, FlagValue]) -> bool:
    """Whether --fit may leave layers in RAM: not where an operator has said what goes where."""
    told = ("tensor-split", "cpu-moe", "n-cpu-moe", "n-cpu-ffn", "override-tensor")
    is_off = flags.get("fit") in (False, "off") or flags.get("split-mode") in ("tensor", "row")
    return not is_off and not any(flags.get(name) for name in told)


def _proportions(flags: Mapping[str, FlagValue], chosen: list[Device], room: Mapping[str, int]) -> dict[str, float]:
    given = str(flags.get("tensor-split", "")).replace("/", ",").split(",")
    sizes: list[float] = []
    for i, device in enumerate(chosen):
        try:
            sizes.append(max(0.0, float(given[i])) if flags.get("tensor-split") else float(room[device.name]))
        except (IndexError, ValueError):
            sizes.append(0.0)
    total = sum(sizes)
    return {d.name: size / total if total else 1 / len(chosen) for d, size in zip(chosen, sizes, strict=True)}
