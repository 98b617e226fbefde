"""What becomes of a repository or an Ollama model: the right model file, or a question back."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.inspect import inspect_file
from orchestrator.schemas import Candidate, HfSource, Inspection, RepositoryView, Role
from orchestrator.servers import adding
from orchestrator.servers.adding import HfOrigin, OllamaOrigin
from orchestrator.store import OllamaModel
from tests.support import ToyBox
from tests.toys import split_mtp

COMMIT = "0123456789" * 4


@pytest.fixture(scope="module")
def files(toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Inspection]:
    made = split_mtp(toys.mtp().path, tmp_path_factory.mktemp("split"))
    paths = {"whole": toys.mtp().path, "trunk": made.trunk, "drafter": made.drafter, "donor": made.donor}
    return {name: inspect_file(path) for name, path in paths.items()}


def candidate(file: str, role: Role = Role.MODEL) -> Candidate:
    return Candidate(file=file, role=role, files=(file,), size_bytes=1_500_000_000)


def view(*candidates: Candidate) -> RepositoryView:
    return RepositoryView(repository="acme/Toy-Model-GGUF", commit=COMMIT, candidates=candidates)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("hf:o/n", HfOrigin("o/n", None, None)),
        ("hf:o/n:Q4_K_M", HfOrigin("o/n", None, "Q4_K_M")),
        ("hf:o/n@v1.0:MTP/x.gguf", HfOrigin("o/n", "v1.0", "MTP/x.gguf")),
        ("ollama:gemma:2b", OllamaOrigin("gemma:2b")),
        ("ollama:hf.co/o/n:Q4", OllamaOrigin("hf.co/o/n:Q4")),
    ],
)
def test_origins(text: str, origin: HfOrigin | OllamaOrigin) -> None:
    assert adding.parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "o/n",
        "hf:",
        "hf:n",
        "hf:a/b/c",
        "https://hub/x.gguf",
        "hf:a b",
        "ollama:",
        "pypi:x",
        "hf:o/n:../x",
        "hf:o/n@../x",
    ],
)
def test_any_other_origin_says_which_there_are(text: str) -> None:
    with pytest.raises(SlipstreamError, match="neither hf:owner/name") as caught:
        adding.parse_origin(text)
    assert caught.value.code is Code.INVALID_REQUEST


def test_a_head_inside_drafts(files: dict[str, Inspection]) -> None:
    whole = candidate("toy-F32.gguf")
    spec, notes = adding.spec_of_repository(view(whole), (whole, files["whole"]), None, None)
    assert (spec.name, spec.speculation.type, spec.speculation.n_max) == ("toy-model", "draft-mtp", 2)
    assert spec.source == HfSource(hf="acme/Toy-Model-GGUF", file="toy-F32.gguf", revision=COMMIT)
    assert spec.server == {"ctx_size": 8192}
    assert any("head of its own" in note for note in notes)


def test_a_drafter_beside_drafts(files: dict[str, Inspection]) -> None:
    trunk, drafter = candidate("t.gguf"), candidate("MTP/d.gguf", Role.DRAFTER)
    found = view(trunk, drafter, candidate("mmproj.gguf", Role.MMPROJ))
    spec, notes = adding.spec_of_repository(found, (trunk, files["trunk"]), (drafter, files["drafter"]), "mine")
    assert spec.drafter == HfSource(hf="acme/Toy-Model-GGUF", file="MTP/d.gguf", revision=COMMIT)
    assert (spec.name, spec.speculation.type) == ("mine", "draft-mtp")
    assert any("mmproj" in note for note in notes)


def test_without_a_drafter_speculation_is_off(files: dict[str, Inspection]) -> None:
    trunk = candidate("t.gguf")
    spec, notes = adding.spec_of_repository(view(trunk), (trunk, files["trunk"]), None, None)
    assert spec.speculation.type == "none" and any("speculation is off" in note for note in notes)


def test_a_donor_is_no_model(files: dict[str, Inspection]) -> None:
    donor = candidate("head.gguf")
    with pytest.raises(SlipstreamError, match="no model") as caught:
        adding.spec_of_repository(view(donor), (donor, files["donor"]), None, None)
    assert caught.value.hint is not None and "graft:" in caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "drafters", "chosen"),
    [(None, [], None), (None, ["d"], "d"), ("none", ["d", "e"], None), ("e", ["d", "e"], "e"), ("q8_0", ["d"], "q8_0")],
)
def test_which_drafter_is_looked_for(wanted: str | None, drafters: list[str], chosen: str | None) -> None:
    found = view(candidate("m"), *(candidate(name, Role.DRAFTER) for name in drafters))
    assert adding.choose_drafter(found, wanted) == chosen


def test_between_two_drafters_nothing_is_guessed() -> None:
    with pytest.raises(SlipstreamError) as caught:
        adding.choose_drafter(view(candidate("d", Role.DRAFTER), candidate("e", Role.DRAFTER)), None)
    assert caught.value.code is Code.SOURCE_AMBIGUOUS
    assert [c["file"] for c in caught.value.details["candidates"]] == ["d", "e"]


@pytest.mark.parametrize(
    ("architecture", "spec_type"),
    [
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
        ("gemma4-assistant", "draft-mtp"),
        ("llama", "draft-simple"),
    ],
)
def test_the_drafter_decides_the_type(files: dict[str, Inspection], architecture: str, spec_type: str) -> None:
    drafter = files["drafter"].model_copy(update={"architecture": architecture, "head": None})
    assert adding.spec_type_of(drafter) == spec_type


def test_an_ollama_model_brings_its_parameters(files: dict[str, Inspection]) -> None:
    parameters: dict[str, Any] = {"temperature": 0.3, "num_ctx": 4096, "nonsense": 1}
    model = OllamaModel(
        *("lib/toy:mtp", Path("model"), Path("drafter"), None, None, None, parameters, (), {}), notes=("a note",)
    )
    spec, notes = adding.spec_of_ollama(model, files["trunk"], files["drafter"], None)
    assert spec.name == "toy-mtp"
    assert (spec.server["ctx_size"], spec.defaults) == (4096, {"temperature": 0.3})
    assert (spec.speculation.type, spec.speculation.n_max) == ("draft-mtp", 4), "as Ollama drafts"
    assert "a note" in notes and any("nonsense" in note for note in notes)


def test_what_no_model_file_can_hold_is_said(files: dict[str, Inspection]) -> None:
    odd = candidate("x" * 256)
    with pytest.raises(SlipstreamError, match="no model file can be written") as caught:
        adding.spec_of_repository(view(odd), (odd, files["whole"]), None, None)
    assert caught.value.code is Code.SOURCE_UNSUPPORTED
    model = OllamaModel(
        *("lib/toy", Path("model"), None, None, None, None, {"temperature": float("nan")}, (), {}), notes=()
    )
    with pytest.raises(SlipstreamError, match=r"no model file can be written.*defaults"):
        adding.spec_of_ollama(model, files["trunk"], None, None)
