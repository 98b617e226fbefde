"""A store, and a package index of the tests' own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store.blobs import Blobs
from tests.support.package_index import Index, running_index
from tests.support.stored import Told


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "cache" / "models")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with running_index() as server:
        for name, value in server.pip_environment().items():
            monkeypatch.setenv(name, value)
        yield server
