"""What is in an image that is on this machine: /versions.json, what its server says of itself, and its GPU's code.

The image runs once, for `llama-server --version`: without network, capabilities and a way to write.
"""

import io
import json
import mmap
import re
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.images.names import ImageName
from orchestrator.cli.images.programs import Programs
from orchestrator.errors import Code, SlipstreamError

Json = dict[str, Any]

SERVER_LABEL = "slipstream.llama-server"
ENGINE_SECONDS = 60
COPY_SECONDS = 300
PULL_SECONDS = 4 * 3600
_HARDENING = (
    *("--read-only", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--pids-limit", "256", "--no-healthcheck"),
)
_HIP_LIBRARY = "libggml-hip.so"
# A bundle of code objects names each one's target.
_HIP_TARGET = re.compile(rb"hipv4-amdgcn-amd-amdhsa--(gfx[0-9a-f]{3,4})")


@dataclass(frozen=True)
class LocalImage:
    """An image that the engine has; `digests` are those it has in registries."""

    id: str
    labels: Mapping[str, str]
    digests: tuple[str, ...]

    @property
    def server(self) -> str:
        """Path of llama-server in it; empty where it has none."""
        return self.labels.get(SERVER_LABEL, "")


@dataclass(frozen=True)
class Inside:
    """What was found. `gpu_targets` are of a ROCm image only."""

    versions: Json
    said: str
    gpu_targets: frozenset[str] | None


def find_local(programs: Programs, name: str) -> LocalImage | None:
    """The image that the engine has under a name; None where it has none. Raises SlipstreamError."""
    ended = programs.run(["docker", "image", "inspect", name], ENGINE_SECONDS)
    if ended.status:
        if "no such image" in ended.err.lower():
            return None
        raise SlipstreamError(Code.HOST_FAILED, f"the Docker engine was asked for {name}: {ended.reason}")
    found = json.loads(ended.out)[0]
    digests = tuple(str(one).rpartition("@")[2] for one in found.get("RepoDigests") or ())
    return LocalImage(str(found["Id"]), (found.get("Config") or {}).get("Labels") or {}, digests)


def pull(programs: Programs, name: ImageName, digest: str) -> None:
    """Bring an image to this machine, by its digest. Raises SlipstreamError."""
    ended = programs.run(["docker", "pull", name.at(digest)], PULL_SECONDS, shown=True)
    if ended.status:
        raise SlipstreamError(Code.SOURCE_FAILED, f"docker pull {name.at(digest)}: {ended.reason}")


def look_inside(programs: Programs, image: LocalImage) -> Inside:
    """Open an image that has a llama-server. Raises SlipstreamError that says what is missing."""
    with _container(programs, image) as container:
        versions = _versions(_copied(programs, f"{container}:/versions.json"))
        targets = None
        if versions.get("accelerator") == "rocm":
            targets = _gpu_targets(programs, f"{container}:{Path(image.server).parent / _HIP_LIBRARY}")
        ended = programs.run(["docker", "start", "--attach", container], ENGINE_SECONDS)
    said = (ended.out.decode(errors="replace") + ended.err).strip()
    if ended.status:
        raise SlipstreamError(Code.SERVER_START_FAILED, f"{image.server} --version in it failed: {ended.reason}")
    return Inside(versions, said, targets)


@contextmanager
def _container(programs: Programs, image: LocalImage) -> Iterator[str]:
    """A container that would run `llama-server --version`; removed whatever happens."""
    name = f"slipstream-verify-{secrets.token_hex(6)}"
    run = ["--entrypoint", image.server, image.id, "--version"]
    try:
        # By its id, so that no name can change its meaning meanwhile.
        argv = ["docker", "create", "--pull", "never", "--name", name, *_HARDENING, *run]
        ended = programs.run(argv, ENGINE_SECONDS)
        if ended.status:
            raise SlipstreamError(Code.HOST_FAILED, f"the Docker engine made no container of it: {ended.reason}")
        yield name
    finally:
        programs.run(["docker", "rm", "--force", "--volumes", name], ENGINE_SECONDS)


def _copied(programs: Programs, source: str) -> bytes:
    ended = programs.run(["docker", "cp", source, "-"], ENGINE_SECONDS)
    if ended.status:
        raise SlipstreamError(Code.NOT_FOUND, f"there is no {source.partition(':')[2]} in it")
    with tarfile.open(fileobj=io.BytesIO(ended.out)) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                return file.read()
    raise SlipstreamError(Code.NOT_FOUND, f"{source.partition(':')[2]} in it is no file")


def _versions(content: bytes) -> Json:
    try:
        versions = json.loads(content)
    except ValueError:
        versions = None
    if not isinstance(versions, dict):
        raise SlipstreamError(Code.INVALID_REQUEST, "/versions.json in it is no JSON object")
    return versions


def _gpu_targets(programs: Programs, source: str) -> frozenset[str]:
    with tempfile.TemporaryDirectory(prefix="slipstream-verify-") as folder:
        ended = programs.run(["docker", "cp", "--follow-link", source, f"{folder}/library"], COPY_SECONDS)
        if ended.status:
            raise SlipstreamError(Code.NOT_FOUND, f"there is no {source.partition(':')[2]} in it")
        library = Path(folder, "library")
        if not library.stat().st_size:
            return frozenset()
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return frozenset(match.decode() for match in _HIP_TARGET.findall(content))
