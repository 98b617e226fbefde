"""What `docker/accelerators.toml` says: GPU architectures, CMake options and patch series of each kind of server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamacpp.pin import ROOT, PinError, read_toml

ACCELERATORS_FILE = ROOT / "docker/accelerators.toml"
# CMake's names: of NVIDIA with or without -real and -virtual, of AMD as the compiler has them.
ARCHITECTURE = {"cuda": re.compile(r"\d{2,3}[af]?(-real|-virtual)?"), "rocm": re.compile(r"gfx[0-9a-f]{3,4}")}
ARCHITECTURES_OPTION = {"cuda": "CMAKE_CUDA_ARCHITECTURES", "rocm": "CMAKE_HIP_ARCHITECTURES"}
# The module that has the GPU's code.
LIBRARY = {"cuda": "libggml-cuda.so", "rocm": "libggml-hip.so"}


@dataclass(frozen=True)
class Variant:
    """One kind of server. `name` is that of its images; `options` are CMake's, beside those that every server has."""

    name: str
    accelerator: str
    architectures: tuple[str, ...]
    patches: str
    platforms: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)

    def cmake_options(self) -> dict[str, str]:
        if self.accelerator == "cpu":
            return self.options
        return self.options | {ARCHITECTURES_OPTION[self.accelerator]: ";".join(self.architectures)}


def _checked(accelerator: str, names: list[str]) -> tuple[str, ...]:
    pattern = ARCHITECTURE.get(accelerator)
    if pattern is None:
        if names:
            raise PinError(f"{accelerator} has no architectures, got {', '.join(names)}")
        return ()
    examples = "86-real or 90" if accelerator == "cuda" else "gfx906 or gfx1030"
    if not names:
        raise PinError(f"{accelerator} needs at least one architecture, such as {examples}")
    for name in names:
        if not pattern.fullmatch(name):
            raise PinError(f"{name!r} is no architecture of {accelerator}; expected names such as {examples}")
        if names.count(name) > 1:
            raise PinError(f"{accelerator} is given the architecture {name} twice")
    return tuple(names)


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    data = read_toml(path, "accelerators")
    for name, table in data.items():
        for key, kind in (("architectures", list), ("patches", str), ("platforms", list)):
            if type(table.get(key)) is not kind:
                raise PinError(
                    f"{path}: [{name}] {key} is {table.get(key)!r}, expected a value of type {kind.__name__}"
                )
    return data


def load_variant(wanted: str, path: Path = ACCELERATORS_FILE) -> Variant:
    """The variant of a name: an accelerator, for its own architectures, or `rocm-gfx1030`, `cuda-86-real_89-real`.

    Raises PinError that names the value and what was expected.
    """
    tables = _tables(path)
    accelerator, dash, named = wanted.partition("-")
    if accelerator not in tables:
        raise PinError(f"unknown variant {wanted!r}; {path.name} has {', '.join(tables)}")
    table = tables[accelerator]
    own = _checked(accelerator, list(table["architectures"]))
    architectures = _checked(accelerator, named.split("_")) if dash else own
    # Few targets stand in the name; CUDA's long list is the one that the plain name means.
    plain = accelerator == "cpu" or (accelerator == "cuda" and architectures == own)
    return Variant(
        accelerator if plain else f"{accelerator}-{'_'.join(architectures)}",
        accelerator,
        architectures,
        str(table["patches"]),
        tuple(table["platforms"]),
        dict(table.get("options", {})),
    )


def accelerators(path: Path = ACCELERATORS_FILE) -> list[str]:
    return list(_tables(path))
