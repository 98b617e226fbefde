"""Docker for tests: an image of the server under test, a second engine, hosts files, and nothing left behind."""

import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from tests.support.commands import COMMAND_SECONDS, must
from tests.support.polling import eventually

ENGINE_START_SECONDS = 60.0
NO_ENGINE = "NOT TESTED: the Docker driver. No Docker engine answers `docker info`."
# An engine makes NVIDIA's device requests work when it finds this program; what it does is NVIDIA's affair.
_NVIDIA_HOOK = "nvidia-container-runtime-hook"


def docker_answers(*argv: str) -> bool:
    """Whether a `docker` command succeeds."""
    try:
        return subprocess.run(["docker", *argv], capture_output=True, timeout=30, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


@dataclass(frozen=True)
class TestEngine:
    """An engine by its address, spoken to by the `docker` program."""

    __test__ = False
    address: str = "unix:///var/run/docker.sock"

    def run(self, *argv: str, timeout_seconds: float = COMMAND_SECONDS) -> str:
        """Standard output of a `docker` command that must succeed."""
        return must(["docker", "--host", self.address, *argv], timeout_seconds=timeout_seconds).strip()

    def answers(self) -> bool:
        """Whether it can be used."""
        return docker_answers("--host", self.address, "info")

    def inspect(self, container: str) -> dict[str, Any]:
        """The engine's record of a container."""
        return dict(json.loads(self.run("inspect", container))[0])

    def owned(self, owner: str, *, running: bool = False) -> list[str]:
        """Names of the containers of an owner; also of those that have ended, unless `running`."""
        every = () if running else ("--all",)
        mine = ("--filter", f"label=slipstream.owner={owner}", "--format", "{{.Names}}")
        return self.run("ps", *every, *mine).split()

    def remove_owned(self, owner: str) -> None:
        """Remove whatever an owner has left."""
        if names := self.owned(owner):
            self.run("rm", "--force", "--volumes", *names)

    def has_network(self, name: str) -> bool:
        """Whether there is a network of this name."""
        return name in self.run("network", "ls", "--format", "{{.Name}}").split()

    def remove_network(self, name: str) -> None:
        """Remove a network, if it is there."""
        if self.has_network(name):
            self.run("network", "rm", name)

    def crash(self, container: str) -> None:
        """End a container's server as a fault would: `docker kill` would count as a stop by hand."""
        os.kill(int(self.inspect(container)["State"]["Pid"]), signal.SIGKILL)

    def load_from(self, other: "TestEngine", image: str) -> None:
        """Copy an image from another engine."""
        save = ["docker", "--host", other.address, "save", image]
        with subprocess.Popen(save, stdout=subprocess.PIPE) as saving:
            load = ["docker", "--host", self.address, "load", "--quiet"]
            subprocess.run(load, stdin=saving.stdout, check=True, capture_output=True, timeout=COMMAND_SECONDS)
        assert saving.returncode == 0


MAIN = TestEngine()


def require_engine() -> TestEngine:
    """This machine's engine; skips the test where none answers."""
    if not MAIN.answers():
        pytest.skip(NO_ENGINE)
    return MAIN


@cache
def bases(*accelerators: str) -> dict[str, str]:
    """The images that the Dockerfile and compose.yaml start from: official ones, or stand-ins made once."""
    said = must(["docker/base-image", *accelerators], timeout_seconds=900)
    return dict(line.split("=", 1) for line in said.split())


def build_image(target: str, tag: str, *arguments: str, server: Path | None = None, context: Path = REPOSITORY) -> str:
    """An image of the Dockerfile, with a server that is built already; layers that have not changed are not made again.

    `arguments` are build arguments, NAME=VALUE.
    """
    given = [f"CPU_BASE={bases()['CPU_BASE']}", *arguments]
    prebuilt: tuple[str, ...] = ()
    if server is not None:
        given.append("SERVER=prebuilt")
        prebuilt = ("--build-context", f"prebuilt={server.parent}")
    MAIN.run(
        *("build", "--quiet", "--file", str(context / "docker/Dockerfile"), "--target", target, "--tag", tag),
        *(word for argument in given for word in ("--build-arg", argument)),
        *(*prebuilt, str(context)),
        timeout_seconds=900,
    )
    return tag


def build_server_image(server: Path, tag: str = "slipstream-llama-server:test") -> str:
    """An image of the server under test."""
    return build_image("llama-server", tag, server=server)


def stand_in_node(path: Path, gid: int, mode: int = 0o660, device: tuple[int, int] = (1, 3)) -> Path:
    """A character device of another group, in place of a GPU's; what is written to it is gone."""
    try:
        os.mknod(path, mode | stat.S_IFCHR, os.makedev(*device))
    except PermissionError:
        pytest.skip("NOT TESTED: device nodes in containers. Only root can make them.")
    path.chmod(mode)
    os.chown(path, 0, gid)
    return path


def build_variant(tag: str, base: str, *lines: str) -> str:
    """An image that differs from another by some lines of a Dockerfile."""
    text = "\n".join((f"FROM {base}", *lines))
    command = ["docker", "build", "--quiet", "--tag", tag, "-"]
    subprocess.run(command, input=text, check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    return tag


def docker_host(name: str, image: str, **keys: Any) -> dict[str, Any]:
    """A host of a hosts file that runs containers of an image."""
    return {"name": name, "driver": "docker", "images": {"default": image}} | keys


def write_hosts(path: Path, *hosts: Mapping[str, Any]) -> Path:
    """A hosts file; JSON is YAML."""
    path.write_text(json.dumps({"hosts": hosts}, indent=1))
    return path


def new_owner() -> str:
    """A mark of one test's containers."""
    return f"test-{secrets.token_hex(6)}"


@contextmanager
def second_engine(*flags: str) -> Iterator[TestEngine]:
    """Another engine on this machine, with everything it keeps in a folder of its own, and a stub for NVIDIA's hook.

    It leaves iptables alone: engines that set up chains of the same names would undo each other's. Needs root.
    """
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("ip") is None:
        pytest.skip("NOT TESTED: two Docker engines. A second one needs root, `dockerd` and `ip`.")
    folder = Path(tempfile.mkdtemp(prefix="slipstream-engine-"))
    # A bridge of its own. Never `--bridge none`: with that dockerd deletes docker0, which is the other engine's.
    bridge = f"slip{secrets.token_hex(4)}"
    stubs = folder / "stubs"
    stubs.mkdir()
    hook = stubs / _NVIDIA_HOOK
    hook.write_text("#!/bin/sh\ncat >/dev/null\nexit 0\n")
    hook.chmod(0o755)
    engine = TestEngine(f"unix://{folder}/docker.sock")
    argv = [
        *("dockerd", "--host", engine.address, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
        *("--pidfile", f"{folder}/docker.pid", "--bridge", bridge, "--iptables=false", "--ip6tables=false"),
        *("--default-address-pool", "base=172.29.0.0/16,size=24", "--mtu", "1400"),
        # A containerd that runs already may be shared; their containers must not be.
        # Named as the bridge is: the folder's name may end in `_`, which containerd refuses.
        *("--containerd-namespace", bridge, "--containerd-plugins-namespace", f"{bridge}-plugins"),
        *flags,
    ]
    env = os.environ | {"PATH": f"{stubs}:{os.environ['PATH']}"}
    log = folder / "dockerd.log"
    ip("link", "add", bridge, "type", "bridge")
    ip("address", "add", "172.28.255.1/24", "dev", bridge)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, start_new_session=True
        )
    try:
        try:
            eventually(
                lambda: process.poll() is not None or engine.answers(),
                "the second engine answers",
                ENGINE_START_SECONDS,
            )
            assert process.poll() is None
        except (AssertionError, TimeoutError):
            raise RuntimeError(f"the second engine did not start:\n{log.read_text()[-3000:]}") from None
        yield engine
    finally:
        _end_engine(engine, process, folder)
        ip("link", "delete", bridge)


def ip(*argv: str) -> None:
    """A command of iproute2 that must succeed."""
    subprocess.run(["ip", *argv], check=True, capture_output=True, timeout=10)


def _end_engine(engine: TestEngine, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    if process.poll() is None:
        if names := engine.run("ps", "--all", "--quiet").split():
            engine.run("rm", "--force", "--volumes", *names)
        for network in engine.run("network", "ls", "--filter", "type=custom", "--quiet").split():
            engine.run("network", "rm", network)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
    shutil.rmtree(folder, ignore_errors=True)
