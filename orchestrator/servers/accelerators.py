"""Why a llama-server sees no accelerator where one is expected: device nodes, libraries, its own words.

docker/accelerator-problem says the same of a llama-server without an orchestrator.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.binary import run
from orchestrator.servers.failures import on_processor

_LDD_TIMEOUT_SECONDS = 20.0
_DEV = Path("/dev")
_OVERFLOW_GID = 65534
_CALLED = {"cuda": "CUDA", "rocm": "ROCm"}
# Of each pattern one node must be there. WSL2 has NVIDIA's GPUs behind one node of its own.
_NODES = {"cuda": ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm"), "rocm": ("kfd", "dri/renderD*")}
_WSL = "dxg"
_MADE_LATE = "on the host `nvidia-modprobe -u -c 0` makes it; then make the container anew"
# Values by which the runtimes hide every GPU; an empty one hides none from HIP.
_HIDING: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cuda": {"CUDA_VISIBLE_DEVICES": ("", "-1", "NoDevFiles")},
    "rocm": {"ROCR_VISIBLE_DEVICES": ("", "-1"), "HIP_VISIBLE_DEVICES": ("-1",)},
}
_BACKENDS = {"cuda": "libggml-cuda.so", "rocm": "libggml-hip.so"}
_IMAGES = {"cuda": "slipstream:cuda", "rocm": "slipstream:rocm-gfx906"}
_PASS = {
    "cuda": "the host needs NVIDIA's driver and the NVIDIA container toolkit, and the container its GPUs: "
    "ACCELERATOR=cuda in .env for compose, `--gpus all` for docker run",
    "rocm": "the host needs the amdgpu driver, and the container its nodes: ACCELERATOR=rocm in .env for compose, "
    "`--device /dev/kfd --device /dev/dri` for docker run",
}
_LIBRARY_HINT = {
    "cuda": "libcuda.so.1 is part of NVIDIA's driver; the NVIDIA container toolkit brings it into a container whose "
    "NVIDIA_DRIVER_CAPABILITIES name `compute`",
    "rocm": "this image lacks parts of ROCm; those of Slipstream have them",
}


@dataclass(frozen=True)
class Missing:
    """Why an accelerator that is expected is not there, and what to do about it."""

    message: str
    hint: str | None = None

    def error(self) -> SlipstreamError:
        """What a probe answers."""
        return SlipstreamError(Code.NO_ACCELERATOR, self.message, hint=self.hint)


async def why_missing(accelerator: str, binary: Path, listed: str, env: Mapping[str, str], dev: Path = _DEV) -> Missing:
    """The first thing that keeps a llama-server from `cuda` or `rocm`; `listed` is what its --list-devices printed."""
    return (
        await asyncio.to_thread(_of_nodes, accelerator, dev)
        or _of_environment(accelerator, env)
        or await _of_library(accelerator, binary, env)
        or _of_words(accelerator, listed)
    )


def _expected(accelerator: str, why: str, hint: str | None) -> Missing:
    return Missing(
        f"{_CALLED[accelerator]} is expected and not used, llama-server computes on the processor: {why}", hint
    )


def _open(node: Path, flags: int) -> int:
    return os.open(node, flags)


def _refusal(node: Path) -> OSError | None:
    """Why a node cannot be opened; a control group forbids what permissions would allow."""
    try:
        os.close(_open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as e:
        return e
    return None


def _of_nodes(accelerator: str, dev: Path) -> Missing | None:
    is_wsl = accelerator == "cuda" and (dev / _WSL).exists()
    refused: dict[Path, OSError] = {}
    for pattern in (_WSL,) if is_wsl else _NODES[accelerator]:
        nodes = sorted(dev.glob(pattern))
        if not nodes:
            hint = _MADE_LATE if pattern in ("nvidiactl", "nvidia-uvm") else _PASS[accelerator]
            return _expected(accelerator, f"there is no /dev/{pattern} here", hint)
        refused |= {node: error for node in nodes if (error := _refusal(node)) is not None}
    if not refused:
        return None
    why = "; ".join(_why_closed(node, dev, error) for node, error in refused.items())
    return _expected(accelerator, why, _groups_hint(accelerator, refused))


def _why_closed(node: Path, dev: Path, error: OSError) -> str:
    name, status = f"/dev/{node.relative_to(dev)}", node.stat()
    if _is_foreign(status, error):
        return f"{name} cannot be opened: it belongs to group {status.st_gid}, of which this process is no member"
    if error.errno == errno.EPERM:
        return f"{name} cannot be opened: it is in the container, and was not given to it as a device"
    owner = f"user {status.st_uid}, group {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o}"
    return f"{name} ({owner}) cannot be opened by user {os.geteuid()}: {error.strerror}"


def _is_foreign(status: os.stat_result, error: OSError) -> bool:
    """Whether membership in its group would open it."""
    # The group that stands for those that a user namespace does not have.
    if status.st_gid == _OVERFLOW_GID:
        return False
    is_of_group = stat.S_IMODE(status.st_mode) & 0o060 == 0o060
    return error.errno == errno.EACCES and is_of_group and status.st_gid not in {os.getegid(), *os.getgroups()}


def _groups_hint(accelerator: str, refused: Mapping[Path, OSError]) -> str | None:
    # The first node that belongs to a group names the variable.
    groups: dict[int, str] = {}
    for node, error in refused.items():
        status = node.stat()
        if _is_foreign(status, error):
            groups.setdefault(status.st_gid, "RENDER_GID" if node.name == "kfd" else "VIDEO_GID")
    if not groups:
        return None
    options = " ".join(f"--group-add {gid}" for gid in groups)
    settings = " and ".join(f"{name}={gid}" for gid, name in groups.items()) + " in .env"
    compose = settings if accelerator == "rocm" else "`group_add`"
    return f"{compose} for compose, `{options}` for docker run; without a container add the user to the group"


def _of_environment(accelerator: str, env: Mapping[str, str]) -> Missing | None:
    for name, values in _HIDING[accelerator].items():
        if env.get(name) in values:
            return _expected(accelerator, f"{name} is {env[name]!r}", "that hides every GPU: unset it, or name GPUs")
    return None


async def _of_library(accelerator: str, binary: Path, env: Mapping[str, str]) -> Missing | None:
    """llama-server passes over a backend that cannot be loaded, without a word."""
    library = binary.with_name(_BACKENDS[accelerator])
    if not library.exists():
        # One that is linked as a whole has no libraries beside it, and tells nothing.
        if not binary.with_name("libggml-base.so").exists():
            return None
        return _expected(
            accelerator,
            f"it was built without {_CALLED[accelerator]}, {library.name} is not beside it",
            f"take the image {_IMAGES[accelerator]}; without a container, `make server VARIANT={accelerator}`",
        )
    absent = list(dict.fromkeys(_not_found(await _ldd(library, env))))
    if not absent:
        return None
    return _expected(
        accelerator, f"{library.name} cannot be loaded, as there is no {', '.join(absent)}", _LIBRARY_HINT[accelerator]
    )


async def _ldd(library: Path, env: Mapping[str, str]) -> list[str]:
    """What the loader says of a library; nothing where there is no ldd, or where it hangs."""
    try:
        _, said = await run("ldd", library, env={**env, "LC_ALL": "C"}, timeout_seconds=_LDD_TIMEOUT_SECONDS)
    except OSError:
        return []
    return said.splitlines()


def _not_found(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        name, arrow, found = line.strip().partition(" => ")
        if arrow and found == "not found":
            yield name


def _of_words(accelerator: str, listed: str) -> Missing:
    said = on_processor(listed.splitlines())
    why = f"it says `{said.strip()}`" if said else "its --list-devices names no such device"
    return _expected(
        accelerator, why, "a driver that is too old for this image, or a GPU that it has no code for: docs/compose.md"
    )
