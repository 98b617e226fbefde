"""Images of the server under test, and containers of them as strictly confined as can be."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import REPOSITORY
from tests.integration.images.published import Published, publishing
from tests.support import ToyBox, eventually
from tests.support.commands import COMMAND_SECONDS
from tests.support.docker import MAIN, build_image, require_engine

# What .dockerignore lets through stands in these.
CONTEXT_FILES = (".dockerignore", "LICENSE", "README.md", "pyproject.toml")
CONTEXT_FOLDERS = ("docker", "models", "orchestrator", "patches", "requirements")
CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
HEALTH_SECONDS = 60.0


@dataclass(frozen=True)
class Container:
    """A container that runs."""

    name: str

    def state(self) -> dict[str, Any]:
        return dict(MAIN.inspect(self.name)["State"])

    def logs(self) -> str:
        """What it has said on both streams."""
        command = ["docker", "--host", MAIN.address, "logs", self.name]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=True
        )
        return done.stdout

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command in it, whatever its exit status."""
        command = ["docker", "--host", MAIN.address, "exec", self.name, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)

    def url(self) -> str:
        return f"http://{MAIN.run('port', self.name, '8080/tcp').splitlines()[0]}"

    def becomes(self, status: str) -> str:
        """The last words of its health check, once its health is this."""

        def probe() -> str | None:
            state = self.state()
            assert state["Running"], self.logs()
            health = state["Health"]
            return health["Log"][-1]["Output"] if health["Status"] == status else None

        return eventually(probe, f"{self.name} is {status}", HEALTH_SECONDS)


@contextmanager
def container(image: str, *argv: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
    """A confined container that ends with the block; `options` are those of `docker run`."""
    name = f"slipstream-image-test-{secrets.token_hex(4)}"
    health = ("--health-interval", "300ms", "--health-start-period", "300ms")
    try:
        MAIN.run("run", "--detach", "--name", name, *CONFINED, *health, *options, image, *argv)
        yield Container(name)
    finally:
        subprocess.run(
            ["docker", "--host", MAIN.address, "rm", "--force", "--volumes", name], capture_output=True, timeout=60
        )


class RunEngine(Protocol):
    """Starts the engine image with the MTP toy in a container that ends with the test."""

    def __call__(self, *flags: str, options: tuple[str, ...] = ()) -> Container: ...


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Path:
    """The server under test; without an engine nothing needs to be compiled."""
    require_engine()
    found: Path = request.getfixturevalue("patched_server")
    return found


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what images are built from: all of them from the same, whatever is edited meanwhile."""
    copy = tmp_path_factory.mktemp("context")
    for name in CONTEXT_FILES:
        shutil.copy2(REPOSITORY / name, copy / name)
    for name in CONTEXT_FOLDERS:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="session")
def engine_image(server: Path, context: Path) -> str:
    return build_image("llama-server", "slipstream-llama-server:test", server=server, context=context)


@pytest.fixture(scope="session")
def product_image(server: Path, context: Path) -> Iterator[str]:
    image = build_image("slipstream", "slipstream:test", server=server, context=context)
    yield image
    MAIN.run("image", "rm", "--force", image)


@pytest.fixture(scope="session")
def orchestrator_image(context: Path) -> Iterator[str]:
    require_engine()
    image = build_image("slipstream", "slipstream:test-orchestrator", "ENGINE=engine-base", context=context)
    yield image
    MAIN.run("image", "rm", "--force", image)


@pytest.fixture(scope="session")
def published(engine_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """A registry that is filled once: a push takes seconds."""
    with publishing(engine_image, tmp_path_factory.mktemp("published")) as made:
        yield made


@pytest.fixture
def run_engine(engine_image: str, toys: ToyBox) -> Iterator[RunEngine]:
    toy = toys.mtp()
    model = ("--volume", f"{toy.path}:/models/toy.gguf:ro", "--publish", "127.0.0.1:0:8080")
    small = ("--ctx-size", "512", "--threads", "1", "--spec-draft-threads", "1")
    with ExitStack() as stack:

        def run(*flags: str, options: tuple[str, ...] = ()) -> Container:
            argv = ("--model", "/models/toy.gguf", *toy.draft_flags(), *small, *flags)
            return stack.enter_context(container(engine_image, *argv, options=(*model, *options)))

        yield run
