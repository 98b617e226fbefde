"""The tables of architectures and tokenizers against the pinned source that the tested server was built from."""

import re
import tarfile
from pathlib import Path

import pytest

from llamacpp.pin import load_pin
from llamacpp.source import cache_root
from orchestrator.gguf.architectures import ANY_NUMBER, ARCHITECTURES, Architecture
from orchestrator.gguf.known import KNOWN_ARCHITECTURES, KNOWN_PRE_TOKENIZERS, KNOWN_TOKENIZERS

pytestmark = pytest.mark.integration
DRAFTING = [a for a in ARCHITECTURES.values() if a.drafts_with_mtp]
NEXTN = "nextn."


class Source:
    """The files of llama.cpp's src folder, by name."""

    def __init__(self, archive: Path) -> None:
        self._files: dict[str, str] = {}
        with tarfile.open(archive) as tar:
            for member in tar:
                if "/llama.cpp/src/" in member.name and member.name.endswith(".cpp"):
                    content = tar.extractfile(member)
                    assert content is not None
                    self._files[member.name.split("/llama.cpp/src/")[1]] = content.read().decode()
        self.names = dict(re.findall(r"\{ (LLM_ARCH_\w+),\s*\"([^\"]+)\"\s*\}", self["llama-arch.cpp"]))
        self._tensors = dict(re.findall(r"\{ (LLM_TENSOR_\w+),\s*\"([^\"]+)\"\s*\}", self["llama-arch.cpp"]))

    def __getitem__(self, name: str) -> str:
        return self._files[name]

    @property
    def models(self) -> dict[str, str]:
        return {name.removeprefix("models/"): text for name, text in self._files.items() if name.startswith("models/")}

    def is_so(self, function: str) -> set[str]:
        """Names of the architectures of which a yes-or-no function of llama-arch.cpp says yes."""
        body = re.search(rf"bool {function}\(.*?\n}}", self["llama-arch.cpp"], re.DOTALL)
        assert body is not None
        return {self.names[name] for name in re.findall(r"case (LLM_ARCH_\w+):", body[0])}

    def block_tensors(self, file: str) -> set[str]:
        """Names, without `blk.N.`, of all tensors of blocks that a model's loader may ask for."""
        text = self.models[file]
        asked = set(re.findall(r"tn\((LLM_TENSOR_\w+),\s*\"(weight|bias)\"", text))
        if "create_tensor_qkv" in text:
            asked |= {(f"LLM_TENSOR_ATTN_{part}", "weight") for part in ("Q", "K", "V", "QKV")}
        if "create_tensor_gate_up_exps" in text:
            asked |= {(f"LLM_TENSOR_FFN_{part}_EXPS", "weight") for part in ("GATE", "UP", "GATE_UP")}
        full = {f"{self._tensors[tensor]}.{end}" for tensor, end in asked}
        return {name.removeprefix("blk.%d.") for name in full if name.startswith("blk.")}


@pytest.fixture(scope="module")
def source() -> Source:
    pin = load_pin()
    archive = cache_root() / "downloads" / f"{pin.sdist_name.replace('-', '_')}-{pin.sdist_version}.tar.gz"
    if not archive.is_file():
        pytest.skip("the pinned source was not brought from PyPI here")
    return Source(archive)


def test_names(source: Source) -> None:
    assert set(source.names.values()) - {"clip", "(unknown)"} == KNOWN_ARCHITECTURES
    assert ARCHITECTURES.keys() <= KNOWN_ARCHITECTURES


def test_kinds(source: Source) -> None:
    of_kind = {kind: {a.name for a in ARCHITECTURES.values() if a.kind == kind} for kind in ("hybrid", "recurrent")}
    assert of_kind["hybrid"] == source.is_so("llm_arch_is_hybrid")
    assert of_kind["recurrent"] == source.is_so("llm_arch_is_recurrent")
    rolls_back = {a.name for a in ARCHITECTURES.values() if a.rolls_back}
    assert rolls_back == source.is_so("llm_arch_supports_rs_rollback")


def test_which_draft_and_which_only_keep_a_head(source: Source) -> None:
    with_graph = {f for f, text in source.models.items() if "make_unique<graph_mtp>" in text}
    # The graph of nemotron_h_moe stands apart from the loader that it shares with nemotron_h.
    assert {a.source for a in DRAFTING} == with_graph - {"nemotron-h-moe.cpp"} | {"nemotron-h.cpp"}
    loads = {f for f, text in source.models.items() if "LLM_TENSOR_NEXTN_EH_PROJ" in text}
    keeps = {a.name.replace("_", "-") + ".cpp" for a in ARCHITECTURES.values() if a.keeps_head}
    assert keeps - {"nemotron-h.cpp"} == loads - {a.source for a in DRAFTING}


@pytest.mark.parametrize("architecture", DRAFTING, ids=lambda a: a.name)
def test_head_tensors(source: Source, architecture: Architecture) -> None:
    asked = source.block_tensors(architecture.source)
    groups = (*architecture.head, *architecture.head_if_shared)
    required = {name for alternatives in groups for names in alternatives for name in names}
    assert required <= asked
    of_head = {name for name in asked if name.startswith(NEXTN)}
    assert of_head == {name for name in required if name.startswith(NEXTN)} | set(architecture.head_optional)


@pytest.mark.parametrize("architecture", DRAFTING, ids=lambda a: a.name)
def test_number_of_head_blocks(source: Source, architecture: Architecture) -> None:
    file = "nemotron-h-moe.cpp" if architecture.name == "nemotron_h_moe" else architecture.source
    single = "GGML_ASSERT(hparams.n_layer_nextn == 1" in source.models[file]
    assert architecture.max_head_blocks == (1 if single else ANY_NUMBER)


@pytest.mark.parametrize("architecture", DRAFTING, ids=lambda a: a.name)
def test_trunks_that_announce_a_head(source: Source, architecture: Architecture) -> None:
    text = source.models[architecture.source]
    assert architecture.announced_head_may_lack == ("trunk_only ? TENSOR_NOT_REQUIRED : 0" in text)
    assert architecture.absent_head_is_trunk == ("hparams.n_layer_nextn = 0;" in text)
    named = {name for alternatives in architecture.head for names in alternatives for name in names}
    assert set(architecture.head_to_draft) <= named


def test_trunks_that_announce_a_head_nothing_drafts_with(source: Source) -> None:
    for architecture in (a for a in ARCHITECTURES.values() if a.keeps_head and a.name != "nemotron_h"):
        text = source.models[f"{architecture.name.replace('_', '-')}.cpp"]
        assert architecture.announced_head_may_lack == ("is_mtp ? TENSOR_SKIP | TENSOR_NOT_REQUIRED : 0" in text)


def test_tokenizers(source: Source) -> None:
    text = source["llama-vocab.cpp"]
    assert set(re.findall(r'tokenizer_model == "([^"]+)"', text)) == KNOWN_TOKENIZERS
    assert set(re.findall(r'tokenizer_pre == "([^"]+)"', text)) == KNOWN_PRE_TOKENIZERS
