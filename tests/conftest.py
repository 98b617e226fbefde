"""Fixtures of all tests: the two servers under test, toys, and a way to start a server on one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from tests import REPOSITORY
from tests.support import LlamaServer, Toy, ToyBox, running_server


class StartServer(Protocol):
    """Starts a server that ends with the test."""

    def __call__(
        self, binary: Path, model: Toy | Path, *flags: str, environment: dict[str, str] | None = None
    ) -> LlamaServer: ...


@pytest.fixture(scope="session")
def patched_server() -> Path:
    """The llama-server with our patches: SLIPSTREAM_TEST_SERVER, else what ``make server-path`` builds."""
    return _server("SLIPSTREAM_TEST_SERVER")


@pytest.fixture(scope="session")
def unpatched_server() -> Path:
    """The pin without patches: SLIPSTREAM_TEST_SERVER_UNPATCHED, else ``make server-path PATCHES=none``."""
    return _server("SLIPSTREAM_TEST_SERVER_UNPATCHED", "PATCHES=none")


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> ToyBox:
    return ToyBox(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    numbers = count()
    with ExitStack() as stack:

        def start(
            binary: Path, model: Toy | Path, *flags: str, environment: dict[str, str] | None = None
        ) -> LlamaServer:
            path = model.path if isinstance(model, Toy) else model
            log = tmp_path / f"llama-server-{next(numbers)}.log"
            return stack.enter_context(running_server(binary, path, *flags, log=log, environment=environment))

        yield start


def _server(variable: str, *arguments: str) -> Path:
    named = os.environ.get(variable)
    if named is None:
        command = ["make", "--silent", "server-path", *arguments]
        made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        if made.returncode:
            pytest.fail(f"{' '.join(command)} ended with status {made.returncode}: {made.stderr.strip()[-2000:]}")
        named = made.stdout.strip().splitlines()[-1]
    path = Path(named)
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is no executable file, expected a llama-server ({variable} or make server-path)")
    return path
