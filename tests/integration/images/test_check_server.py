"""docker/check-server in a container: servers for GPUs made of empty libraries, and the messages for what they lack."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llamacpp.pin import ROOT
from llamacpp.variants import accelerators, load_variant
from tests.support.commands import COMMAND_SECONDS
from tests.support.docker import MAIN, bases, new_owner, require_engine

KERNELS_OF_GPU = ("Kernels.so-000-{}.hsaco", "TensileLibrary_lazy_{}.dat", "TensileLibrary_Type_HH_fallback_{}.hsaco")
HIP_CODE = b"hipv4-amdgcn-amd-amdhsa--"

pytestmark = pytest.mark.integration


def library(path: Path, *needed: Path, appended: bytes = b"", rpath: str = "/nowhere") -> Path:
    """An empty shared library that needs others, with bytes behind it as a compiler for GPUs would put code in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    links = (f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", *map(str, needed), f"-Wl,-rpath,{rpath}")
    subprocess.run(["cc", "-shared", "-o", path, "-x", "c", "/dev/null", "-x", "none", *links], check=True)
    with path.open("ab") as file:
        file.write(appended)
    return path


@dataclass
class Bench:
    """A container with the scripts, and the tests' folder in it at the same path."""

    folder: Path
    name: str = field(default_factory=new_owner)

    def start(self) -> None:
        mounts = (f"{ROOT / 'docker'}:/tmp/docker:ro", f"{self.folder}:{self.folder}")
        volumes = (word for mount in mounts for word in ("--volume", mount))
        MAIN.run("run", "--detach", "--init", "--name", self.name, *volumes, bases()["CPU_BASE"], "sleep", "infinity")

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "exec", self.name, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)

    def check(self, server: Path, variant: str) -> subprocess.CompletedProcess[str]:
        return self.run("/tmp/docker/check-server", str(server), variant)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require_engine()
    made = Bench(tmp_path_factory.getbasetemp())
    made.start()
    yield made
    MAIN.run("rm", "--force", made.name)


@dataclass
class Made:
    """A folder as docker/build-llama-server leaves one, and the libraries that an image has."""

    server: Path
    installed: Path

    @property
    def kernels(self) -> Path:
        return self.installed / "rocblas/4.4.1/library"

    def write(self, **facts: Any) -> None:
        (self.server / "build.json").write_text(json.dumps({"key": "0123", "tag": "b7"} | facts, indent=2) + "\n")

    def add_kernels(self, architecture: str) -> None:
        for name in KERNELS_OF_GPU:
            (self.kernels / name.format(architecture)).touch()

    def add_module(self, name: str, *needed: str, code: bytes = b"") -> None:
        libraries = (library(self.installed / name) for name in needed)
        library(self.server / name, *libraries, appended=code, rpath=str(self.installed))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A server for gfx906 that passes."""
    made = Made(tmp_path / "server", tmp_path / "installed")
    made.server.mkdir()
    made.kernels.mkdir(parents=True)
    program = made.server / "llama-server"
    program.write_text("#!/bin/sh\necho version: 7 >&2\n")
    program.chmod(0o755)
    made.write(variant="rocm-gfx906", architectures=["gfx906"])
    made.add_module("libggml-hip.so", "librocblas.so.4", code=HIP_CODE + b"gfx906")
    made.add_kernels("gfx906")
    return made


def test_what_is_in_an_image_is_printed(bench: Bench, made: Made) -> None:
    done = bench.check(made.server, "rocm-gfx906")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["variant"], said["accelerator"], said["architectures"]) == ("rocm-gfx906", "rocm", ["gfx906"])
    assert said["llama_cpp"] == json.loads((made.server / "build.json").read_text())
    assert said["packages"]["bash"]
    assert said["distribution"].startswith("Debian")
    # None of ROCm's packages is in this container.
    changed = {change["package"]: change for change in said["changed_packages"]}
    assert changed["librocblas4"]["found"] == ""
    recorded = changed["librocblas4"]["recorded"]
    assert f"warning: librocblas4 is not installed, docker/rocm-packages.txt records {recorded}\n" in done.stderr
    assert "hipcc" not in changed


def test_a_server_for_the_cpu_has_no_architectures(bench: Bench, made: Made) -> None:
    done = bench.check(made.server, "cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["architectures"] == []
    assert "changed_packages" not in json.loads(done.stdout)


def test_the_folder_of_amd_is_found(bench: Bench, made: Made) -> None:
    made.kernels.rename(made.installed / "rocblas/library")
    done = bench.check(made.server, "rocm")
    assert done.returncode == 0, done.stderr


def other_code(made: Made) -> None:
    made.add_module("libggml-hip.so", "librocblas.so.4", code=HIP_CODE + b"gfx906 " + HIP_CODE + b"gfx90a")


def no_code(made: Made) -> None:
    made.add_module("libggml-hip.so", "librocblas.so.4")


def without(pattern: str) -> Callable[[Made], None]:
    def remove(made: Made) -> None:
        for path in made.kernels.glob(pattern):
            path.unlink()

    return remove


def no_library(made: Made) -> None:
    made.add_module("libggml-hip.so", "librocblas.so.4", "libabsent.so.1", code=HIP_CODE + b"gfx906")
    (made.installed / "libabsent.so.1").unlink()


def broken_server(made: Made) -> None:
    (made.server / "llama-server").write_text("#!/bin/sh\necho no such instruction >&2; exit 132\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_code, "libggml-hip.so holds code for gfx906 gfx90a, expected gfx906 (variant rocm-gfx906)"),
        (no_code, "libggml-hip.so holds code for no GPU, expected gfx906"),
        (lambda made: made.add_module("libggml-hip.so", code=HIP_CODE + b"gfx906"), "does not need a librocblas.so"),
        (lambda made: (made.server / "libggml-hip.so").unlink(), "built for another accelerator than rocm"),
        (without("*lazy*"), "rocBLAS cannot run on gfx906: FOLDER has no file TensileLibrary_lazy_gfx906.dat"),
        (without("Kernels*"), "rocBLAS cannot run on gfx906: FOLDER has no file Kernels.so-000-gfx906"),
        (without("*Type*"), "rocBLAS cannot run on gfx906: FOLDER has no file TensileLibrary_Type_"),
        (lambda made: made.kernels.rename(made.installed / "moved"), "expected one folder of rocBLAS' kernels below"),
        (no_library, "libabsent.so.1 => not found"),
        (broken_server, "no such instruction"),
        (lambda made: (made.server / "build.json").unlink(), "no llama-server and build.json in"),
    ],
)
def test_a_server_that_lacks_something_ends_the_build(
    bench: Bench, made: Made, spoil: Callable[[Made], None], message: str
) -> None:
    spoil(made)
    done = bench.check(made.server, "rocm-gfx906")
    assert done.returncode != 0
    assert message.replace("FOLDER", str(made.kernels)) in done.stderr
    assert done.stdout == ""


def test_kernels_for_other_gpus_are_an_error_where_they_are_kept_out(bench: Bench, made: Made) -> None:
    made.add_kernels("gfx1030")
    done = bench.check(made.server, "rocm-gfx906")
    assert done.returncode == 0, done.stderr
    kept_out = "/etc/dpkg/dpkg.cfg.d/rocblas-kernels"
    bench.run("touch", kept_out)
    done = bench.check(made.server, "rocm-gfx906")
    bench.run("rm", kept_out)
    assert done.returncode == 1
    assert f"{made.kernels} has kernels for gfx1030 too, expected gfx906 (variant rocm-gfx906)" in done.stderr


def test_a_server_for_nvidia_needs_cublas_and_its_architectures(bench: Bench, made: Made) -> None:
    """The driver's libcuda.so.1 comes with the GPU; which code the module holds the build itself has looked up."""
    made.write(architectures=["86-real", "90-virtual"])
    made.add_module("libggml-cuda.so", "libcublas.so.12", "libcuda.so.1")
    (made.installed / "libcuda.so.1").unlink()
    done = bench.check(made.server, "cuda-90-virtual_86-real")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["architectures"] == ["90-virtual", "86-real"]
    done = bench.check(made.server, "cuda-89-real")
    assert done.returncode == 1
    assert "build.json: built for 86-real 90-virtual, expected 89-real (variant" in done.stderr
    made.add_module("libggml-cuda.so")
    done = bench.check(made.server, "cuda-90-virtual_86-real")
    assert done.returncode == 1
    assert "does not need a libcublas.so" in done.stderr


@pytest.mark.parametrize("variant", [*accelerators(), "rocm-gfx1030_gfx906", "cuda-86-real_90-virtual"])
def test_the_stages_read_the_same_architectures_as_the_build(variant: str) -> None:
    command = [str(ROOT / "docker/architectures-of"), variant]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(done.stdout.split()) == load_variant(variant).architectures


def test_an_unknown_variant_is_named() -> None:
    done = subprocess.run([ROOT / "docker/architectures-of", "vulkan"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown variant 'vulkan': expected cpu, cuda, rocm" in done.stderr
