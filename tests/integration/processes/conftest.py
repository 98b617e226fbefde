"""The gateway and the control plane over processes of the fake server: every test here starts some."""

from tests.unit.api.conftest import api, http
from tests.unit.conftest import fake_flags, jobs, pytest_asyncio_loop_factories, world

__all__ = ["api", "fake_flags", "http", "jobs", "pytest_asyncio_loop_factories", "world"]
