"""Which architectures a library holds code for, which it should, and where the compilers are. Nothing is compiled."""

import re
from pathlib import Path

import pytest

from llamacpp import gpu
from llamacpp.pin import PinError
from llamacpp.variants import load_variant


def bundle(*targets: str) -> bytes:
    """What clang puts before the code objects of a HIP library: a magic word, and the target of each."""
    return b"__CLANG_OFFLOAD_BUNDLE__\x02" + b"\0".join(target.encode() + b"\0code" for target in targets)


def hip(name: str) -> str:
    return f"hipv4-amdgcn-amd-amdhsa--{name}"


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands first on PATH."""
    folder = tmp_path / "bin"
    monkeypatch.setattr(gpu, "search_path", lambda: f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", set()),
        (b"an ELF file without GPU code, gfx906 in a string", set()),
        (bundle("host-x86_64-unknown-linux-gnu-", hip("gfx906")), {"gfx906"}),
        (bundle(hip("gfx906")) * 3 + bundle(hip("gfx1030")), {"gfx906", "gfx1030"}),
        (bundle(hip("gfx906:sramecc+:xnack-"), hip("gfx90a:xnack+")), {"gfx906", "gfx90a"}),
    ],
)
def test_amd_architectures_are_read_from_the_bundles(tmp_path: Path, content: bytes, found: set[str]) -> None:
    (tmp_path / "libggml-hip.so").write_bytes(content)
    assert gpu.architectures_of("rocm", tmp_path / "libggml-hip.so") == found


LISTING = """case $1 in
--list-elf) echo "ELF file    1: a.1.sm_61.cubin"; echo "ELF file    2: a.2.sm_120a.cubin"; \
  echo "ELF file    3: b.3.sm_61.cubin" ;;
--list-ptx) echo "PTX file    1: a.1.sm_90.ptx" ;;
esac"""


def test_nvidia_architectures_are_read_from_cuobjdump(tmp_path: Path, on_path: Path) -> None:
    tool(on_path, "cuobjdump", LISTING)
    assert gpu.architectures_of("cuda", tmp_path / "any") == {"61", "120a", "90-virtual"}


def test_a_tool_that_fails_is_told_with_its_words(tmp_path: Path, on_path: Path) -> None:
    tool(on_path, "cuobjdump", "echo no such file >&2; exit 3")
    with pytest.raises(PinError, match=r"cuobjdump --list-elf .*any failed with exit status 3: no such file"):
        gpu.architectures_of("cuda", tmp_path / "any")


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("rocm-gfx1030_gfx906", {"gfx906", "gfx1030"}),
        ("cuda-61-real_90-virtual", {"61", "90-virtual"}),
        # CMake's plain number is both; llama.cpp makes 120a of 120.
        ("cuda-90", {"90", "90-virtual"}),
        ("cuda-120-real_121", {"120a", "121a", "121a-virtual"}),
        ("cuda-120a-real", {"120a"}),
    ],
)
def test_what_a_variant_promises(variant: str, expected: set[str]) -> None:
    assert gpu.expected_architectures(load_variant(variant)) == expected


def test_a_module_must_hold_its_architectures_and_no_other(tmp_path: Path) -> None:
    variant, library = load_variant("rocm-gfx1030_gfx906"), tmp_path / "libggml-hip.so"
    with pytest.raises(PinError, match=re.escape(f"the build gave no libggml-hip.so in {tmp_path}")):
        gpu.check(tmp_path, variant)
    wrong = {
        "no GPU": b"",
        "gfx906": bundle(hip("gfx906")),
        "gfx1030, gfx900, gfx906": bundle(hip("gfx906"), hip("gfx1030"), hip("gfx900")),
    }
    for held, content in wrong.items():
        library.write_bytes(content)
        expected = f"libggml-hip.so holds code for {held}, expected gfx1030, gfx906 (variant rocm-gfx1030_gfx906)"
        with pytest.raises(PinError, match=f"^{re.escape(expected)}$"):
            gpu.check(tmp_path, variant)
    library.write_bytes(bundle(hip("gfx906"), hip("gfx1030")))
    gpu.check(tmp_path, variant)


def test_a_server_for_the_cpu_needs_no_module(tmp_path: Path) -> None:
    gpu.check(tmp_path, load_variant("cpu"))
    assert gpu.cmake_options("cpu") == {}
    assert gpu.languages("cpu") == ("C", "CXX")


@pytest.mark.parametrize(("accelerator", "program"), [("cuda", "nvcc"), ("rocm", "hipconfig")])
def test_a_missing_compiler_is_told_with_what_brings_it(
    accelerator: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "search_path", lambda: str(tmp_path))
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.delenv("HIPCXX", raising=False)
    with pytest.raises(PinError, match=f"^{program} is not installed. {gpu.HINTS[accelerator].split(':')[0]}"):
        gpu.compiler_identity(accelerator)


def test_hipcc_says_which_clang_and_where_rocm_is(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIPCXX", raising=False)
    tool(on_path, "hipconfig", f'case $1 in -l) echo "{on_path}" ;; -R) echo /usr ;; esac')
    tool(on_path, "clang", 'echo "Debian clang version 21.1.8"; echo "Target: x86_64-pc-linux-gnu"')
    assert gpu.compiler_identity("rocm") == "Debian clang version 21.1.8"
    assert gpu.cmake_options("rocm") == {
        "CMAKE_HIP_COMPILER": f"{on_path}/clang",
        "CMAKE_HIP_COMPILER_ROCM_ROOT": "/usr",
        "CMAKE_PREFIX_PATH": "/usr",
    }
    assert gpu.languages("rocm") == ("C", "CXX", "HIP")


def test_the_release_is_the_identity_of_nvcc(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(
        on_path, "nvcc", 'echo "nvcc: NVIDIA (R) Cuda compiler driver"; echo "Cuda compilation tools, release 12.8, V1"'
    )
    monkeypatch.setenv("CUDACXX", str(on_path / "nvcc"))
    assert gpu.compiler_identity("cuda") == "Cuda compilation tools, release 12.8, V1"
    with pytest.raises(PinError, match="cuobjdump is not installed"):
        gpu.cmake_options("cuda")
    tool(on_path, "cuobjdump", LISTING)
    assert gpu.cmake_options("cuda") == {"CMAKE_CUDA_COMPILER": str(on_path / "nvcc")}
