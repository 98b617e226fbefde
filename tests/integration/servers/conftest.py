"""The real manager over processes of the fake server: every test here starts some."""

from tests.unit.conftest import fake_flags, jobs, pytest_asyncio_loop_factories, world

__all__ = ["fake_flags", "jobs", "pytest_asyncio_loop_factories", "world"]
