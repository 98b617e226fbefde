"""The table of architectures in itself; tests/integration/gguf/test_architectures.py holds it against the source."""

import tomllib

import pytest

from orchestrator.gguf.architectures import ARCHITECTURES, architecture_of
from orchestrator.gguf.known import PINNED_BUILD
from tests import REPOSITORY


def test_an_architecture_without_an_entry_is_plain() -> None:
    plain = architecture_of("llama")
    assert (plain.name, plain.kind, plain.drafts_with_mtp, plain.max_head_blocks) == ("llama", "attention", False, 0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_entries_are_consistent(name: str) -> None:
    architecture = architecture_of(name)
    assert architecture.name == name
    assert architecture.drafts_with_mtp == bool(architecture.source) == (architecture.max_head_blocks > 0)
    assert not (architecture.drafts_with_mtp and (architecture.keeps_head or architecture.drafts_for))


def test_requirements_are_alternatives_of_full_names() -> None:
    head = architecture_of("glm4moe").head
    assert (("attn_norm.weight",),) in head
    assert (("attn_q.weight", "attn_k.weight", "attn_v.weight"), ("attn_qkv.weight",)) in head
    assert (("exp_probs_b.bias",),) in head


def test_the_pinned_build_is_that_of_the_series() -> None:
    pin = tomllib.loads((REPOSITORY / "patches" / "upstream.toml").read_text())
    assert pin["git"]["build_number"] == PINNED_BUILD
