"""Orchestrators over fake servers whose every phase can be held, with room for as many as a test says."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import FAKE_SERVER
from tests.support.orchestrator import Orchestrator
from tests.support.scripted import write_script

MakeStage = Callable[..., "Stage"]

# What each model is said to need, so that `room` counts servers.
NEEDS_BYTES = 1000


class Stage(Orchestrator):
    """An orchestrator over the fake server."""

    @property
    def folder(self) -> Path:
        """Where its tests keep their gates; it is there before the orchestrator is."""
        self.home.mkdir(parents=True, exist_ok=True)
        return self.home

    def gate(self, name: str) -> Path:
        """A file that is not there yet."""
        return self.folder / f"{name}.gate"

    def script(self, model: str, **script: Any) -> None:
        """What the servers of a model do from their next start on."""
        write_script(self.folder / f"{model}.gguf", script)

    def model(self, name: str, script: dict[str, Any] | None = None, *, needs: int = 1, **fields: Any) -> None:
        """A model that needs the room of `needs` ordinary ones."""
        self.script(name, **script or {})
        place = {"memory": {"host": needs * NEEDS_BYTES}}
        self.write_model(name, self.folder / f"{name}.gguf", **{"place": place} | fields)


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """Makes stages of the test's own, not started yet; they end with the test."""
    numbers = count()
    with ExitStack() as stack:

        def make(*, room: int = 10, **settings: str) -> Stage:
            quick = {
                "SHUTDOWN_TIMEOUT_SECONDS": "1",
                "STOP_TIMEOUT_SECONDS": "1",
                "MEMORY": f"host={room * NEEDS_BYTES}",
            }
            made = Stage(tmp_path / f"stage-{next(numbers)}", FAKE_SERVER, quick | settings)
            stack.callback(made.close)
            return made

        yield make
