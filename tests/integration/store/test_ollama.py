"""llama-server on the blobs of an Ollama store: files without a name that says what they are."""

from pathlib import Path

import pytest

from orchestrator.schemas import OllamaSource
from orchestrator.store.layout import Layout
from tests.conftest import StartServer
from tests.support import ToyBox
from tests.support.ollama_store import OllamaStoreMaker

pytestmark = pytest.mark.integration


def test_blobs_are_served_in_place_with_their_drafter(
    tmp_path: Path, toys: ToyBox, start_server: StartServer, patched_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toys.pair()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    maker = OllamaStoreMaker(tmp_path / "ollama")
    maker.create("toy:mtp", model=toy.path, draft=toy.drafter, params={"temperature": 0})
    for path in (tmp_path / "ollama").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    layout = Layout(tmp_path / "models", tmp_path / "cache")
    target = layout.place(OllamaSource(ollama="toy:mtp"))
    drafter = layout.place(OllamaSource(ollama="toy:mtp", layer="drafter"))
    assert target is not None and drafter is not None
    flags = ("--spec-type", "draft-simple", "--spec-draft-model", str(drafter.path))
    answer = start_server(patched_server, target.path, *flags).client.completion("hello A", 32)
    assert answer.draft_n > 0 and answer.accepted_n > 0
    assert not (tmp_path / "cache").exists()
