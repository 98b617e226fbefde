"""The MTP toy: a dense glm4moe trunk and one MTP block (llama.cpp, src/models/glm4-moe.cpp)."""

from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType

from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
TRUNK_BLOCKS = 2
EXPERTS = 2
EXPERT_FF = 32


def write_mtp(path: Path, knobs: Knobs | None = None) -> Language:
    """Write the MTP toy to ``path`` and return what it says."""
    with ToyWriter(path, "glm4moe", SHAPE, knobs or Knobs()) as toy:
        gguf = toy.gguf
        gguf.add_block_count(TRUNK_BLOCKS + 1)
        gguf.add_nextn_predict_layers(1)
        gguf.add_leading_dense_block_count(TRUNK_BLOCKS)
        gguf.add_expert_count(EXPERTS)
        gguf.add_expert_used_count(1)
        gguf.add_expert_shared_count(1)
        gguf.add_expert_feed_forward_length(EXPERT_FF)
        gguf.add_expert_weights_scale(1.0)
        gguf.add_expert_weights_norm(True)
        gguf.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        toy.attention_keys(n_rot=SHAPE.head_dim)
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS):
            _norms(toy, f"blk.{block}.")
            toy.attention(f"blk.{block}.")
            toy.dense_ffn(f"blk.{block}.")
        _mtp_block(toy, f"blk.{TRUNK_BLOCKS}.")
    return toy.language


def _norms(toy: ToyWriter, prefix: str) -> None:
    for name in ("attn_norm", "post_attention_norm"):
        toy.ones(f"{prefix}{name}.weight", SHAPE.n_embd)


def _mtp_block(toy: ToyWriter, prefix: str) -> None:
    # llama.cpp asserts that the MTP block routes experts, even over a dense trunk.
    _norms(toy, prefix)
    toy.attention(prefix, silent=True)
    toy.random(f"{prefix}ffn_gate_inp.weight", EXPERTS, SHAPE.n_embd)
    toy.tensor(f"{prefix}exp_probs_b.bias", np.zeros(EXPERTS, np.float32))
    for name in ("ffn_gate", "ffn_up"):
        toy.random(f"{prefix}{name}_exps.weight", EXPERTS, EXPERT_FF, SHAPE.n_embd)
        toy.random(f"{prefix}{name}_shexp.weight", EXPERT_FF, SHAPE.n_embd)
    toy.outward(f"{prefix}ffn_down_exps.weight", EXPERTS, SHAPE.n_embd, EXPERT_FF, silent=True)
    toy.outward(f"{prefix}ffn_down_shexp.weight", SHAPE.n_embd, EXPERT_FF, silent=True)
    toy.nextn(prefix)
