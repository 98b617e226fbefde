"""A browser, and orchestrators to look at: one over the real llama-server, one over the fake."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests import FAKE_SERVER, REPOSITORY
from tests.support import ToyBox
from tests.support.browser import chromium_path, running_chromium
from tests.support.hub import Hub, running_hub
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script

# One thread: a toy gains nothing from two.
THREADS: dict[str, Any] = {"threads": 1, "spec_draft_threads": 1}
QUICK = {"SHUTDOWN_TIMEOUT_SECONDS": "1", "DRAIN_TIMEOUT_SECONDS": "2"}
# A file whose name would be an element, if the page took it for one.
# As long as a name may be, and without a place to break it.
LONG = "a" * 63
HOSTILE = "<img src=x onerror=document.title='taken'>.yaml"
WEIGHTS_BYTES = 40_000_000


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("no chromium here: the page was not tested in a browser (Debian's package is `chromium`)")
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def hub() -> Iterator[Hub]:
    """A hub with a file that takes its time."""
    with running_hub() as hub:
        hub.add("acme/slow-GGUF", "slow-F32.gguf", b"\0" * WEIGHTS_BYTES)
        hub.bytes_per_second = 1_500_000
        yield hub


@pytest.fixture(scope="package")
def house(
    patched_server: Path, toys: ToyBox, hub: Hub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchestrator]:
    """`toy` drafts on two slots, `plain` does not draft, `slow` is still to be brought; one model file is wrong."""
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    house = Orchestrator(tmp_path_factory.mktemp("page"), patched_server, QUICK, environment)
    drafting: dict[str, Any] = {"speculation": {"type": "draft-mtp", "n_max": 3}, "aliases": ["alias-of-toy"]}
    house.write_model(
        "toy", toys.mtp().path, server=THREADS | {"ctx_size": 4096, "parallel": 2, "context_shift": True}, **drafting
    )
    house.write_model("plain", toys.pair().path, server=THREADS | {"ctx_size": 4096, "parallel": 1})
    house.write_model("slow", source={"hf": "acme/slow-GGUF", "file": "slow-F32.gguf"})
    (house.models_dir / HOSTILE).write_text("name: <b>bold</b>\n")
    with running_orchestrator(house):
        yield house
        house.require_alive()


@dataclass(frozen=True)
class Stage:
    """An orchestrator over the fake llama-server, whose models do as they are told."""

    house: Orchestrator

    def script(self, model: str, **script: Any) -> None:
        """What a model's server does from its next start on."""
        write_script(self.house.models_dir / f"{model}.gguf", script)

    def gate(self, name: str) -> Path:
        """A file that a script waits for; `touch()` opens the gate."""
        return self.house.home / f"{name}.gate"


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """`gated` loads when it is let, `fails` never does, `speaks` says what it is told to; one has a long name."""
    home = tmp_path_factory.mktemp("stage")
    house = Orchestrator(home, FAKE_SERVER, QUICK, {"PYTHONPATH": str(REPOSITORY)})
    house.models_dir.mkdir(parents=True)
    stage = Stage(house)
    for name in ("gated", "fails", "speaks", LONG):
        stage.script(name)
        house.write_model(name, source={"path": f"{name}.gguf"})
    with running_orchestrator(house):
        yield stage
        house.require_alive()
