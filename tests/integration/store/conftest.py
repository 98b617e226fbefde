"""A store, and a package index of the tests' own."""

from collections.abc import Iterator

import pytest

from tests.support.package_index import Index, running_index
from tests.unit.store.conftest import blobs, told

__all__ = ["blobs", "told"]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with running_index() as server:
        for name, value in server.pip_environment().items():
            monkeypatch.setenv(name, value)
        yield server
