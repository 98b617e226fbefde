"""Heads are found by their tensors, whatever the keys say."""

import pytest

from orchestrator.gguf.architectures import ARCHITECTURES
from orchestrator.gguf.head import find_head, missing_tensors, split_name, trunk_blocks, unknown_tensors
from orchestrator.gguf.header import TensorInfo
from orchestrator.gguf.types import TensorType


def tensors(*names: str) -> list[TensorInfo]:
    return [TensorInfo(name, (4,), TensorType.F32, 0) for name in names]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("blk.0.attn_q.weight", (0, "attn_q.weight")),
        ("blk.117.nextn.eh_proj.weight", (117, "nextn.eh_proj.weight")),
        ("output.weight", (None, "output.weight")),
        ("blk.07.attn_q.weight", (None, "blk.07.attn_q.weight")),
        ("blk.1", (None, "blk.1")),
        ("blk.1.", (None, "blk.1.")),
        ("enc.blk.1.x", (None, "enc.blk.1.x")),
        ("blk.9999999.x", (None, "blk.9999999.x")),
    ],
)
def test_names_are_split(name: str, parts: tuple[int | None, str]) -> None:
    assert split_name(name) == parts


def test_a_head_is_every_tensor_of_its_blocks_in_their_order() -> None:
    found = tensors(
        "output.weight", "blk.1.nextn.enorm.weight", "blk.0.a", "blk.1.b", "blk.10.nextn.x", "blk.2.nextn.y"
    )
    head = find_head(found)
    assert head is not None
    assert head.blocks == (1, 2, 10)
    assert [t.name for t in head.tensors] == ["blk.1.nextn.enorm.weight", "blk.1.b", "blk.10.nextn.x", "blk.2.nextn.y"]
    assert head.size_bytes == 4 * 16
    assert head.has("b") and not head.has("a")
    assert trunk_blocks(found) == (0,)


def test_a_model_without_nextn_has_no_head() -> None:
    found = tensors("blk.0.a", "blk.3.b", "token_embd.weight")
    assert find_head(found) is None
    assert trunk_blocks(found) == (0, 3)


def test_of_alternatives_the_nearest_is_missing() -> None:
    arch = ARCHITECTURES["hy_v3"]
    names = ["attn_norm", "attn_qkv", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up"]
    head = find_head(tensors(*(f"blk.4.{n}.weight" for n in (*names, "nextn.eh_proj", "nextn.hnorm"))))
    assert head is not None
    missing = missing_tensors(head, arch, has_shared_expert=False)
    assert missing == ("blk.4.ffn_down.weight", "blk.4.nextn.enorm.weight")


def test_shared_experts_need_their_tensors() -> None:
    arch = ARCHITECTURES["glm4moe"]
    head = find_head(tensors("blk.4.nextn.eh_proj.weight"))
    assert head is not None
    alone, shared = (missing_tensors(head, arch, has_shared_expert=has) for has in (False, True))
    assert set(shared) - set(alone) == {f"blk.4.ffn_{part}_shexp.weight" for part in ("gate", "up", "down")}


def test_what_a_loader_does_not_ask_for_is_unknown() -> None:
    names = ("eh_proj.weight", "eh_proj.scale", "eh_proj.input_scale", "shared_head_norm.weight", "embed_tokens.weight")
    head = find_head(tensors(*(f"blk.4.nextn.{name}" for name in names)))
    assert head is not None
    assert unknown_tensors(head, ARCHITECTURES["glm4moe"]) == ()
    assert unknown_tensors(head, ARCHITECTURES["nemotron_h_moe"]) == ("blk.4.nextn.embed_tokens.weight",)
