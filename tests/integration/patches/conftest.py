from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import StartServer
from tests.integration.patches.scenario import N_MAX
from tests.support import LlamaServer, Toy


class StartPatched(Protocol):
    """Starts the patched server on a toy, drafting at most N_MAX tokens on one slot unless flags say otherwise."""

    def __call__(self, toy: Toy, *flags: str, environment: dict[str, str] | None = None) -> LlamaServer: ...


@pytest.fixture
def patched(start_server: StartServer, patched_server: Path) -> StartPatched:
    def start(toy: Toy, *flags: str, environment: dict[str, str] | None = None) -> LlamaServer:
        base = ("--parallel", "1", "--spec-draft-n-max", str(N_MAX), *toy.draft_flags())
        return start_server(patched_server, toy, *base, *flags, environment=environment)

    return start
