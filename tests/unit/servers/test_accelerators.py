"""What is said of an accelerator that is expected and not there: a folder of fake device nodes, fake libraries."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.errors import Code
from orchestrator.servers import accelerators
from orchestrator.servers.accelerators import Missing, why_missing

NONE = "Available devices:\n  (none)\n"
# Of nobody here.
FOREIGN = 4_000_123
Dev = Callable[..., Path]


@pytest.fixture
def dev(tmp_path: Path) -> Dev:
    def make(*nodes: str) -> Path:
        for node in nodes:
            path = tmp_path / "dev" / node
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.chmod(0o660)
        (tmp_path / "dev").mkdir(exist_ok=True)
        return tmp_path / "dev"

    return make


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A server that is linked as a whole, unless a test lays libraries beside it."""
    (tmp_path / "server").mkdir()
    return tmp_path / "server" / "llama-server"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, tuple[int, int]]], None]:
    """Nodes by name that cannot be opened: with which error, and of which group. Root could open all of them."""

    def close(nodes: Mapping[str, tuple[int, int]]) -> None:
        real = Path.stat

        def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
            found = real(path, follow_symlinks=follow_symlinks)
            if path.name not in nodes:
                return found
            # st_gid is the sixth field.
            return os.stat_result((*found[:5], nodes[path.name][1], *found[6:]))

        def open_(path: Path, flags: int) -> int:
            if path.name in nodes:
                raise OSError(nodes[path.name][0], os.strerror(nodes[path.name][0]))
            return os.dup(2)

        monkeypatch.setattr(Path, "stat", stat)
        monkeypatch.setattr(accelerators, "_open", open_)

    return close


async def why(accelerator: str, binary: Path, dev: Path, listed: str = NONE) -> Missing:
    found = await why_missing(accelerator, binary, listed, {"PATH": os.environ["PATH"]}, dev)
    name = {"cuda": "CUDA", "rocm": "ROCm"}[accelerator]
    assert found.message.startswith(f"{name} is expected and not used, llama-server computes on the processor: ")
    error = found.error()
    assert (error.code, error.status, error.hint) == (Code.NO_ACCELERATOR, 503, found.hint)
    return found


@pytest.mark.parametrize(
    "accelerator, nodes, absent, hint",
    [
        ("rocm", (), "/dev/kfd", "--device /dev/kfd --device /dev/dri"),
        ("rocm", ("kfd", "dri/card0"), "/dev/dri/renderD*", "ACCELERATOR=rocm"),
        ("cuda", (), "/dev/nvidia[0-9]*", "--gpus all"),
        ("cuda", ("nvidiactl", "nvidia-uvm"), "/dev/nvidia[0-9]*", "NVIDIA container toolkit"),
        ("cuda", ("nvidiactl", "nvidia0"), "/dev/nvidia-uvm", "nvidia-modprobe"),
    ],
)
async def test_a_node_that_is_not_there_is_named(
    accelerator: str, nodes: tuple[str, ...], absent: str, hint: str, binary: Path, dev: Dev
) -> None:
    found = await why(accelerator, binary, dev(*nodes))
    assert found.message.endswith(f": there is no {absent} here") and hint in str(found.hint)


async def test_the_groups_of_nodes_are_told_in_numbers(
    binary: Path, dev: Dev, closed: Callable[[Mapping[str, tuple[int, int]]], None]
) -> None:
    nodes = dev("kfd", "dri/renderD128", "dri/renderD129")
    closed({name: (errno.EACCES, FOREIGN) for name in ("kfd", "renderD128", "renderD129")})
    found = await why("rocm", binary, nodes)
    assert (
        f"/dev/kfd cannot be opened: it belongs to group {FOREIGN}, of which this process is no member" in found.message
    )
    assert f"/dev/dri/renderD129 cannot be opened: it belongs to group {FOREIGN}" in found.message
    assert f"RENDER_GID={FOREIGN} in .env" in str(found.hint) and f"`--group-add {FOREIGN}`" in str(found.hint)
    closed({"kfd": (errno.EACCES, FOREIGN), "renderD128": (errno.EACCES, FOREIGN + 1), "renderD129": (errno.EACCES, 1)})
    assert f"RENDER_GID={FOREIGN} and VIDEO_GID={FOREIGN + 1} and" in str((await why("rocm", binary, nodes)).hint)
    closed({"renderD128": (errno.EACCES, FOREIGN + 1)})
    found = await why("rocm", binary, nodes)
    assert "kfd" not in found.message and str(found.hint).startswith(f"VIDEO_GID={FOREIGN + 1} in .env")
    closed({"nvidia0": (errno.EACCES, FOREIGN)})
    found = await why("cuda", binary, dev("nvidiactl", "nvidia-uvm", "nvidia0"))
    assert str(found.hint).startswith(f"`group_add` for compose, `--group-add {FOREIGN}`")


async def test_what_no_group_opens_has_another_reason(
    binary: Path, dev: Dev, closed: Callable[[Mapping[str, tuple[int, int]]], None]
) -> None:
    nodes = dev("nvidiactl", "nvidia-uvm", "nvidia0")
    closed({"nvidia0": (errno.EPERM, FOREIGN)})
    assert "was not given to it as a device" in (await why("cuda", binary, nodes)).message
    closed({"nvidia0": (errno.EACCES, os.getegid())})
    found = await why("cuda", binary, nodes)
    assert (
        f"/dev/nvidia0 (user {os.getuid()}, group {os.getegid()}, mode 0660) cannot be opened by user" in found.message
    )
    assert found.hint is None
    closed({"nvidia0": (errno.EACCES, 65534)})
    assert "group 65534, mode 0660) cannot be opened" in (await why("cuda", binary, nodes)).message


@pytest.mark.parametrize(
    "accelerator, nodes, name, value, hides",
    [
        ("cuda", ("dxg",), "CUDA_VISIBLE_DEVICES", "", True),
        ("cuda", ("dxg",), "CUDA_VISIBLE_DEVICES", "0", False),
        ("rocm", ("kfd", "dri/renderD128"), "HIP_VISIBLE_DEVICES", "-1", True),
        ("rocm", ("kfd", "dri/renderD128"), "HIP_VISIBLE_DEVICES", "", False),
    ],
)
async def test_a_variable_that_hides_every_gpu_is_named(
    accelerator: str, nodes: tuple[str, ...], name: str, value: str, hides: bool, binary: Path, dev: Dev
) -> None:
    found = await why_missing(accelerator, binary, NONE, {"PATH": os.environ["PATH"], name: value}, dev(*nodes))
    assert (f"{name} is {value!r}" in found.message) is hides


async def test_on_wsl_there_is_one_node(binary: Path, dev: Dev) -> None:
    assert "/dev/" not in (await why("cuda", binary, dev("dxg"))).message
    assert "/dev/kfd" in (await why("rocm", binary, dev("dxg"))).message


@pytest.mark.parametrize(
    "accelerator, nodes, library, image",
    [
        ("rocm", ("kfd", "dri/renderD128"), "libggml-hip.so", "slipstream:rocm-gfx906"),
        ("cuda", ("dxg",), "libggml-cuda.so", "slipstream:cuda"),
    ],
)
async def test_a_server_that_was_built_without_it(
    accelerator: str, nodes: tuple[str, ...], library: str, image: str, binary: Path, dev: Dev
) -> None:
    binary.with_name("libggml-base.so").touch()
    found = await why(accelerator, binary, dev(*nodes))
    assert (
        f"was built without {'ROCm' if accelerator == 'rocm' else 'CUDA'}, {library} is not beside it" in found.message
    )
    assert image in str(found.hint) and f"`make server VARIANT={accelerator}`" in str(found.hint)


async def test_libraries_that_the_backend_lacks_are_named(binary: Path, dev: Dev, tmp_path: Path) -> None:
    binary.with_name("libggml-base.so").touch()
    binary.with_name("libggml-cuda.so").touch()
    ldd = tmp_path / "bin" / "ldd"
    ldd.parent.mkdir()
    ldd.write_text(
        "#!/bin/sh\nprintf '\\t%s\\n' 'libcuda.so.1 => not found' 'libc.so.6 => /lib/libc.so.6 (0x0)' "
        "'libcublas.so.12 => not found' 'libcuda.so.1 => not found'\nexit 1\n"
    )
    ldd.chmod(0o755)
    env = {"PATH": f"{ldd.parent}:{os.environ['PATH']}"}
    found = await why_missing("cuda", binary, NONE, env, dev("dxg"))
    assert found.message.endswith(": libggml-cuda.so cannot be loaded, as there is no libcuda.so.1, libcublas.so.12")
    assert "NVIDIA_DRIVER_CAPABILITIES" in str(found.hint)


@pytest.mark.parametrize(
    "said, told",
    [
        (
            "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n",
            "it says `ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime "
            "version`",
        ),
        ("", "its --list-devices names no such device"),
    ],
)
async def test_at_last_it_speaks_for_itself(said: str, told: str, binary: Path, dev: Dev) -> None:
    assert (await why("cuda", binary, dev("dxg"), said + NONE)).message.endswith(f": {told}")
