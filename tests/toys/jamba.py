"""The replay toy: a Mamba block and an attention block (llama.cpp, src/models/jamba.cpp).

Its recurrent state cannot step back, so after a partly refused draft llama-server restores a checkpoint and
decodes the accepted tokens again. It has no MTP head; draft for it with the drafter of ``write_pair``.
"""

from pathlib import Path

import numpy as np

from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape(n_head=9, n_head_kv=3)
HEADS_KV_BY_BLOCK = [0, SHAPE.n_head_kv]
INNER = 2 * SHAPE.n_embd
STATE = 8
TIME_STEP_RANK = 8
CONV_KERNEL = 4


def write_replay(path: Path, knobs: Knobs | None = None) -> Language:
    """Write the replay toy to ``path`` and return what it says."""
    with ToyWriter(path, "jamba", SHAPE, knobs or Knobs()) as toy:
        gguf = toy.gguf
        gguf.add_block_count(len(HEADS_KV_BY_BLOCK))
        gguf.add_head_count_kv(HEADS_KV_BY_BLOCK)
        gguf.add_ssm_conv_kernel(CONV_KERNEL)
        gguf.add_ssm_inner_size(INNER)
        gguf.add_ssm_state_size(STATE)
        gguf.add_ssm_time_step_rank(TIME_STEP_RANK)
        toy.language_tensors(toy.language.target_logits)
        for block, heads_kv in enumerate(HEADS_KV_BY_BLOCK):
            prefix = f"blk.{block}."
            for name in ("attn_norm", "ffn_norm"):
                toy.ones(f"{prefix}{name}.weight", SHAPE.n_embd)
            if heads_kv:
                toy.attention(prefix)
            else:
                _mamba(toy, prefix)
            toy.dense_ffn(prefix)
    return toy.language


def _mamba(toy: ToyWriter, prefix: str) -> None:
    toy.random(f"{prefix}ssm_in.weight", 2 * INNER, SHAPE.n_embd)
    toy.random(f"{prefix}ssm_conv1d.weight", INNER, CONV_KERNEL, scale=0.5)
    toy.random(f"{prefix}ssm_conv1d.bias", INNER)
    toy.random(f"{prefix}ssm_x.weight", TIME_STEP_RANK + 2 * STATE, INNER)
    for name, width in (("dt", TIME_STEP_RANK), ("b", STATE), ("c", STATE)):
        toy.ones(f"{prefix}ssm_{name}_norm.weight", width)
    toy.random(f"{prefix}ssm_dt.weight", INNER, TIME_STEP_RANK)
    toy.random(f"{prefix}ssm_dt.bias", INNER)
    # A negative decay rate keeps the state bounded.
    toy.tensor(f"{prefix}ssm_a", np.full((INNER, STATE), -0.3, np.float32))
    toy.ones(f"{prefix}ssm_d", INNER)
    toy.outward(f"{prefix}ssm_out.weight", SHAPE.n_embd, INNER)
