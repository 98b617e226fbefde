"""One orchestrator that most tests share, and a maker of others for tests that end or break theirs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support import Toy, ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator

# One thread: a toy gains nothing from two, and waiting for each other costs far more on a busy machine.
THREADS: dict[str, Any] = {"threads": 1, "spec_draft_threads": 1}
# A stream in flight ends when this time is over; the default would only make the tests wait.
QUICK = {"SHUTDOWN_TIMEOUT_SECONDS": "1"}

MakeOrchestrator = Callable[..., Orchestrator]


def write_toys(orchestrator: Orchestrator, mtp: Toy, pair: Toy) -> None:
    """`toy` drafts on two slots, `other` is small, `endless` generates until it is told to stop."""
    mtp_fields: dict[str, Any] = {"speculation": {"type": "draft-mtp", "n_max": 3}, "aliases": ["alias-of-toy"]}
    orchestrator.write_model("toy", mtp.path, server=THREADS | {"ctx_size": 16384, "parallel": 2}, **mtp_fields)
    orchestrator.write_model("other", pair.path, server=THREADS | {"ctx_size": 2048, "parallel": 1})
    endless = THREADS | {"ctx_size": 1024, "parallel": 2, "context_shift": True}
    orchestrator.write_model("endless", pair.path, server=endless)


@pytest.fixture(scope="session")
def house(patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """The shared one: tests may start and stop its servers, but leave the process alone."""
    orchestrator = Orchestrator(tmp_path_factory.mktemp("house"), patched_server, QUICK)
    write_toys(orchestrator, toys.mtp(), toys.pair())
    with running_orchestrator(orchestrator):
        yield orchestrator
        orchestrator.require_alive()


@pytest.fixture
def make_orchestrator(patched_server: Path, toys: ToyBox, tmp_path: Path) -> Iterator[MakeOrchestrator]:
    """Makes an orchestrator of the test's own, not started yet; it ends with the test."""
    numbers = count()
    with ExitStack() as stack:

        def make(
            binary: Path | None = None, *, environment: dict[str, str] | None = None, **settings: str
        ) -> Orchestrator:
            home = tmp_path / f"home-{next(numbers)}"
            made = Orchestrator(home, binary or patched_server, QUICK | settings, environment or {})
            stack.callback(made.close)
            if binary is None:
                write_toys(made, toys.mtp(), toys.pair())
            return made

        yield make
