"""Hybrids with experts: qwen35moe and qwen3next (llama.cpp, src/models/qwen35moe.cpp and qwen3next.cpp)."""

from pathlib import Path

from gguf import ExpertGatingFuncType

from tests.toys.blocks import DeltaNet, Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
RECURRENT_BLOCKS = [True, False]
ROPE_SECTIONS = [4, 2, 2, 0]
EXPERTS = Experts(bias="", weighed_shared=True, gating=ExpertGatingFuncType.SOFTMAX)


def write_qwen35moe(path: Path, knobs: Knobs) -> Language:
    """A header that lists its recurrent blocks one by one."""
    with ToyWriter(path, "qwen35moe", SHAPE, knobs) as toy:
        toy.gguf.add_rope_dimension_sections(ROPE_SECTIONS)
        toy.by_block("attention.recurrent_layers", [*RECURRENT_BLOCKS, False])
        _write(toy, DeltaNet())
    return toy.language


def write_qwen3next(path: Path, knobs: Knobs) -> Language:
    """A header with an interval for all; its recurrent state cannot step back, so drafts are verified by a replay."""
    with ToyWriter(path, "qwen3next", SHAPE, knobs) as toy:
        toy.gguf.add_full_attention_interval(len(RECURRENT_BLOCKS))
        _write(toy, DeltaNet(joined=True))
    return toy.language


def _write(toy: ToyWriter, delta_net: DeltaNet) -> None:
    head = len(RECURRENT_BLOCKS)
    toy.gguf.add_block_count(head + 1)
    toy.gguf.add_nextn_predict_layers(1)
    toy.gguf.add_expert_shared_feed_forward_length(EXPERTS.n_ff)
    EXPERTS.keys(toy)
    delta_net.keys(toy)
    toy.attention_keys(n_rot=2 * sum(ROPE_SECTIONS))
    toy.language_tensors(toy.language.target_logits)
    for block, recurrent in enumerate([*RECURRENT_BLOCKS, False]):
        prefix = f"blk.{block}."
        norms(toy, prefix, "attn_norm", "post_attention_norm")
        if recurrent:
            delta_net.tensors(toy, prefix)
        else:
            toy.attention(prefix, gated=True, silent=block == head)
            for name in ("attn_q_norm", "attn_k_norm"):
                toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)
        EXPERTS.tensors(toy, prefix, silent=block == head)
    toy.nextn(f"blk.{head}.")
