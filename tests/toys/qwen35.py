"""The hybrid toy: gated delta-net and attention blocks, one MTP block (llama.cpp, src/models/qwen35.cpp).

Its recurrent state can step back a bounded number of tokens, so draft-mtp verifies without a replay.
"""

from pathlib import Path

import numpy as np

from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape(head_dim=64)
TRUNK_BLOCKS = 4
ATTENTION_INTERVAL = 2
ROPE_SECTIONS = [8, 4, 4, 0]
STATE = 32
KEY_HEADS = 2
VALUE_HEADS = 4
CONV_KERNEL = 4
INNER = STATE * VALUE_HEADS
CONV_WIDTH = 2 * STATE * KEY_HEADS + INNER


def write_hybrid(path: Path, knobs: Knobs | None = None) -> Language:
    """Write the hybrid toy to ``path`` and return what it says."""
    with ToyWriter(path, "qwen35", SHAPE, knobs or Knobs()) as toy:
        gguf = toy.gguf
        gguf.add_block_count(TRUNK_BLOCKS + 1)
        gguf.add_nextn_predict_layers(1)
        gguf.add_rope_dimension_sections(ROPE_SECTIONS)
        gguf.add_rope_freq_base(10000.0)
        gguf.add_ssm_conv_kernel(CONV_KERNEL)
        gguf.add_ssm_inner_size(INNER)
        gguf.add_ssm_state_size(STATE)
        gguf.add_ssm_time_step_rank(VALUE_HEADS)
        gguf.add_ssm_group_count(KEY_HEADS)
        gguf.add_full_attention_interval(ATTENTION_INTERVAL)
        toy.attention_keys(n_rot=2 * sum(ROPE_SECTIONS))
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS):
            if (block + 1) % ATTENTION_INTERVAL == 0:
                _attention_block(toy, f"blk.{block}.", silent=False)
            else:
                _delta_net_block(toy, f"blk.{block}.")
        _attention_block(toy, f"blk.{TRUNK_BLOCKS}.", silent=True)
        toy.nextn(f"blk.{TRUNK_BLOCKS}.")
    return toy.language


def _norms_and_ffn(toy: ToyWriter, prefix: str, *, silent: bool) -> None:
    for name in ("attn_norm", "post_attention_norm"):
        toy.ones(f"{prefix}{name}.weight", SHAPE.n_embd)
    toy.dense_ffn(prefix, silent=silent)


def _attention_block(toy: ToyWriter, prefix: str, *, silent: bool) -> None:
    _norms_and_ffn(toy, prefix, silent=silent)
    toy.attention(prefix, gated=True, silent=silent)
    for name in ("attn_q_norm", "attn_k_norm"):
        toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)


def _delta_net_block(toy: ToyWriter, prefix: str) -> None:
    _norms_and_ffn(toy, prefix, silent=False)
    toy.random(f"{prefix}attn_qkv.weight", CONV_WIDTH, SHAPE.n_embd)
    toy.random(f"{prefix}attn_gate.weight", INNER, SHAPE.n_embd)
    toy.random(f"{prefix}ssm_conv1d.weight", CONV_WIDTH, CONV_KERNEL, scale=0.5)
    toy.random(f"{prefix}ssm_dt.bias", VALUE_HEADS)
    # A negative decay rate keeps the state bounded.
    toy.tensor(f"{prefix}ssm_a", np.linspace(-0.25, -0.05, VALUE_HEADS, dtype=np.float32))
    for name in ("ssm_alpha", "ssm_beta"):
        toy.random(f"{prefix}{name}.weight", VALUE_HEADS, SHAPE.n_embd)
    toy.ones(f"{prefix}ssm_norm.weight", STATE)
    toy.outward(f"{prefix}ssm_out.weight", SHAPE.n_embd, INNER)
