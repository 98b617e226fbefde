"""An image registry, and a builder that pushes to it as those of a pipeline do.

Debian has no BuildKit of its own, but an engine has one inside. With its containerd store that builder makes indexes,
attestations and caches; the engine's API hands out its gRPC, which a `remote` builder of buildx speaks.
"""

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.commands import must
from tests.support.debian import debian_program
from tests.support.docker import TestEngine, second_engine
from tests.support.polling import eventually

START_SECONDS = 20.0
_LISTENING = "listening on "
_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def registry() -> Iterator[str]:
    """A registry of its own on loopback: its address, which engines and builders speak to without TLS."""
    program = debian_program("docker-registry")
    with tempfile.TemporaryDirectory(prefix="slipstream-registry-") as folder:
        settings = {
            "version": "0.1",
            "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": f"{folder}/data"}},
            "http": {"addr": "127.0.0.1:0"},
        }
        # JSON is YAML.
        Path(folder, "config.yml").write_text(json.dumps(settings))
        log = Path(folder, "log")
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [program, "serve", f"{folder}/config.yml"], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )

        def address() -> str:
            assert process.poll() is None, log.read_text()
            said = log.read_text().partition(_LISTENING)[2]
            return said.split('"')[0] if '"' in said else ""

        try:
            yield eventually(address, "the registry listens", START_SECONDS)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Buildx:
    """`docker buildx` with a `remote` builder; `environment` has other programs use it too."""

    engine: TestEngine
    environment: Mapping[str, str]

    def run(self, *argv: str) -> str:
        """Standard output of a `docker buildx` command that must succeed."""
        return must(["docker", "buildx", *argv], env=self.environment).strip()

    def inspect(self, image: str, of: str = "Manifest") -> dict[str, Any]:
        """What the registry has of an image: Manifest, Image, SBOM or Provenance."""
        return dict(json.loads(self.run("imagetools", "inspect", "--format", f"{{{{json .{of}}}}}", image)))

    def raw(self, image: str) -> dict[str, Any]:
        """The manifest or index as it lies in the registry."""
        return dict(json.loads(self.run("imagetools", "inspect", "--raw", image)))


@contextmanager
def remote_builder() -> Iterator[Buildx]:
    """A builder of another engine, by a `buildx` whose settings end with it."""
    with tempfile.TemporaryDirectory(prefix="slipstream-buildx-") as folder:
        settings = Path(folder, "daemon.json")
        settings.write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
        with second_engine("--config-file", str(settings)) as engine, _grpc(engine, f"{folder}/grpc.sock"):
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("BUILDX_", "DOCKER_"))}
            environment |= {"BUILDX_CONFIG": f"{folder}/buildx", "DOCKER_HOST": engine.address}
            made = Buildx(engine, environment | {"BUILDX_BUILDER": "remote"})
            made.run("create", "--name", "remote", "--driver", "remote", f"unix://{folder}/grpc.sock")
            yield made


@contextmanager
def _grpc(engine: TestEngine, address: str) -> Iterator[None]:
    """A socket that speaks gRPC at once, which an engine does after an upgrade of HTTP."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=_accept, args=(listener, engine), daemon=True).start()
        yield
        # Wakes the thread: a socket that is closed meanwhile would not.
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, engine: TestEngine) -> None:
    with suppress(OSError):
        while True:
            near, _ = listener.accept()
            threading.Thread(target=_relay, args=(near, engine), daemon=True).start()


def _relay(near: socket.socket, engine: TestEngine) -> None:
    with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
        far.connect(engine.address.removeprefix("unix://"))
        far.sendall(_UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += far.recv(1)
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
