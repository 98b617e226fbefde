import pytest

from tests import REPOSITORY


@pytest.fixture(autouse=True)
def _for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests' work."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
