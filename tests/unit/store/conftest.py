"""A store with files in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store.blobs import Blobs
from tests.support.answers import Certificate, make_certificate
from tests.support.fetching import partial_of, point_at
from tests.support.hub import Hub, running_hub
from tests.support.stored import Told


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "cache" / "models")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as server:
        point_at(server, monkeypatch)
        yield server


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return partial_of(tmp_path)
