"""Compilers of GPU code: where they are, what identifies them, and which architectures a library really holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from llamacpp import toolchain
from llamacpp.pin import PinError
from llamacpp.variants import LIBRARY, Variant

# Of nvcc and hipcc, and where their packages put them when PATH does not say.
CUDA_BIN, ROCM_BIN = "/usr/local/cuda/bin", "/opt/rocm/bin"
HINTS = {
    "cuda": "CUDA's compiler is needed: NVIDIA's package cuda-toolkit-12-8, or an image nvidia/cuda:12.8.1-devel-*",
    "rocm": "HIP's compiler is needed: Debian's hipcc, libhipblas-dev, librocblas-dev, or an image rocm/dev-*-complete",
}
# A bundle of code objects names each one's target; uncompressed, as clang writes them by default.
HIP_TARGET = re.compile(rb"hipv4-amdgcn-amd-amdhsa--(gfx[0-9a-f]{3,4})")


def search_path() -> str:
    return os.pathsep.join([toolchain.search_path(), CUDA_BIN, ROCM_BIN])


def _tool(name: str, accelerator: str) -> str:
    found = shutil.which(name, path=search_path())
    if found is None:
        raise PinError(f"{name} is not installed. {HINTS[accelerator]}")
    return found


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise PinError(f"{' '.join(command)} failed with exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def compiler(accelerator: str) -> str:
    """Path of nvcc (CUDACXX names another), or of the clang that hipcc drives (HIPCXX names another)."""
    variable = {"cuda": "CUDACXX", "rocm": "HIPCXX"}[accelerator]
    if named := os.environ.get(variable):
        return named
    if accelerator == "cuda":
        return _tool("nvcc", accelerator)
    return str(Path(_output(_tool("hipconfig", accelerator), "-l"), "clang"))


def compiler_identity(accelerator: str) -> str:
    """The line of the compiler's `--version` that tells the release."""
    lines = _output(compiler(accelerator), "--version").splitlines()
    return next((line for line in lines if "release" in line), lines[0])


def cmake_options(accelerator: str) -> dict[str, str]:
    """The options that name the compiler and its toolkit; none for the CPU."""
    if accelerator == "cpu":
        return {}
    if accelerator == "cuda":
        # Needed once everything has compiled: too late to find it missing.
        _tool("cuobjdump", accelerator)
        return {"CMAKE_CUDA_COMPILER": compiler(accelerator)}
    root = _output(_tool("hipconfig", accelerator), "-R")
    return {
        "CMAKE_HIP_COMPILER": compiler(accelerator),
        "CMAKE_HIP_COMPILER_ROCM_ROOT": root,
        "CMAKE_PREFIX_PATH": root,
    }


def languages(accelerator: str) -> tuple[str, ...]:
    """CMake's languages of a build."""
    return ("C", "CXX", *{"cuda": ("CUDA",), "rocm": ("HIP",)}.get(accelerator, ()))


def architectures_of(accelerator: str, library: Path) -> set[str]:
    """Architectures that a library or an object holds code for: `61` and `90-virtual` (PTX), or `gfx906`."""
    if accelerator == "rocm":
        return {match.decode() for match in HIP_TARGET.findall(library.read_bytes())}
    cuobjdump = _tool("cuobjdump", accelerator)
    real = re.findall(r"\.sm_(\d+[af]?)\.cubin", _output(cuobjdump, "--list-elf", str(library)))
    virtual = re.findall(r"\.sm_(\d+[af]?)\.ptx", _output(cuobjdump, "--list-ptx", str(library)))
    return {*real, *(f"{name}-virtual" for name in virtual)}


def expected_architectures(variant: Variant) -> set[str]:
    """The same names, for the architectures that the variant lists: CMake's `90` is real code and PTX."""
    if variant.accelerator == "rocm":
        return set(variant.architectures)
    expected: set[str] = set()
    for name in variant.architectures:
        number, _, kind = name.partition("-")
        # llama.cpp's own rule (ggml-cuda/CMakeLists.txt): 12x becomes 12xa.
        number += "a" if re.fullmatch(r"12\d", number) else ""
        expected |= {number} if kind in ("", "real") else set()
        expected |= {f"{number}-virtual"} if kind in ("", "virtual") else set()
    return expected


def check(folder: Path, variant: Variant) -> None:
    """Raise PinError unless the GPU's module in `folder` is there and passes `check_code`."""
    if variant.accelerator == "cpu":
        return
    library = folder / LIBRARY[variant.accelerator]
    if not library.exists():
        raise PinError(f"the build gave no {library.name} in {folder}")
    check_code(library, variant)


def check_code(file: Path, variant: Variant) -> None:
    """Raise PinError unless a library or an object holds code for just the variant's architectures."""
    found, expected = architectures_of(variant.accelerator, file), expected_architectures(variant)
    if found != expected:
        raise PinError(
            f"{file.name} holds code for {', '.join(sorted(found)) or 'no GPU'}, "
            f"expected {', '.join(sorted(expected))} (variant {variant.name})"
        )
