"""Jobs over a database of their own, whose work is that of work.py."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.db import Database
from orchestrator.jobs import Jobs, lines
from orchestrator.schemas import JobEvent, JobState, JobView
from tests import REPOSITORY
from tests.unit.conftest import until
from tests.unit.jobs.kinds import KINDS


@dataclass
class Bench:
    """A folder for the state and for what the work writes, and the jobs that are open over it."""

    folder: Path
    jobs: Jobs

    async def submit(self, *steps: list[Any], key: str | None = None, kind: str = "toy", **options: Any) -> JobView:
        """Ask for work of its own, or for that of `key`."""
        request = {"steps": list(steps), "result": options.pop("result", {})}
        return await self.jobs.submit(kind, "a toy", request, key=key or str(steps), **options)

    async def end(self, *steps: list[Any], **options: Any) -> JobView:
        """Ask for work, and wait for its end."""
        return await self.jobs.wait((await self.submit(*steps, **options)).id)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def wait(self, name: str) -> list[str]:
        """The step that waits for a file; `open_gate` makes it."""
        return ["wait_for", self.path(name)]

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    def pids(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def pid(self, name: str) -> int:
        """The one process id that the work notes."""
        (pid,) = await until(lambda: self.pids(name), f"{name} is written")
        return pid

    async def lines(self, id: str, after: int = 0) -> list[str]:
        """The lines of a job that has ended."""
        return [e.data.text for e in await self.events(id, after) if e.name == "line"]  # type: ignore[union-attr]

    async def events(self, id: str, after: int = 0) -> list[JobEvent]:
        return [event async for event in self.jobs.follow(id, after)]

    def state(self, id: str) -> JobState:
        return self.jobs.get(id).state


@asynccontextmanager
async def opened(folder: Path, parallel: int = 2) -> AsyncIterator[Bench]:
    """As one life of an orchestrator: at the end nothing runs, and the state stays."""
    with Database(folder / "state") as database:
        jobs = Jobs(database, KINDS, parallel)
        try:
            await jobs.open()
            yield Bench(folder, jobs)
        finally:
            await jobs.close()


@pytest.fixture(autouse=True)
def _for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests' work, and lines come soon."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(lines, "_BATCH_SECONDS", 0.02)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        yield bench
