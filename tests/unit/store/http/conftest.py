"""What the tests of connections share."""

from collections.abc import Iterator

import pytest

from orchestrator.store.http.session import Session
from tests.support.fetching import QUICK


@pytest.fixture
def session() -> Iterator[Session]:
    opened = Session(QUICK)
    yield opened
    opened.close()
