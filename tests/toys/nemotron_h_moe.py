"""nemotron_h_moe: a Mamba-2, an expert and an attention block, one MTP block (llama.cpp, src/models/nemotron-h.cpp).

A trunk block is one sub-layer; the header's arrays say which. Its recurrent state can step back a bounded number
of tokens. Its MTP block has no output matrix and ends in a LayerNorm.
"""

from pathlib import Path

import numpy as np

from tests.toys.blocks import Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import RMS_EPSILON, Shape, ToyWriter

SHAPE = Shape()
EXPERTS = Experts(gated=False)
HEADS_KV_BY_BLOCK = [0, 0, SHAPE.n_head_kv, SHAPE.n_head_kv]
FF_BY_BLOCK = [0, EXPERTS.n_ff, 0, EXPERTS.n_ff]
HEAD = len(FF_BY_BLOCK) - 1
INNER = 64
STATE = 16
SSM_HEADS = 2
GROUPS = 1
CONV_KERNEL = 4


def write_nemotron_h_moe(path: Path, knobs: Knobs) -> Language:
    with ToyWriter(path, "nemotron_h_moe", SHAPE, knobs, n_ff=FF_BY_BLOCK) as toy:
        toy.gguf.add_block_count(HEAD + 1)
        toy.gguf.add_nextn_predict_layers(1)
        toy.gguf.add_layer_norm_eps(RMS_EPSILON)
        toy.gguf.add_ssm_conv_kernel(CONV_KERNEL)
        toy.gguf.add_ssm_inner_size(INNER)
        toy.gguf.add_ssm_state_size(STATE)
        toy.gguf.add_ssm_time_step_rank(SSM_HEADS)
        toy.gguf.add_ssm_group_count(GROUPS)
        toy.gguf.add_expert_shared_feed_forward_length(EXPERTS.n_ff)
        # llama.cpp's MTP graph takes the number of experts used from block 0, whatever that block is.
        EXPERTS.keys(toy, n_ff=FF_BY_BLOCK, used=[1] * (HEAD + 1))
        toy.attention_keys(n_rot=SHAPE.head_dim, n_head_kv=HEADS_KV_BY_BLOCK)
        toy.language_tensors(toy.language.target_logits)
        for block, (heads_kv, n_ff) in enumerate(zip(HEADS_KV_BY_BLOCK, FF_BY_BLOCK, strict=True)):
            prefix = f"blk.{block}."
            norms(toy, prefix, "attn_norm")
            if heads_kv:
                toy.attention(prefix, silent=block == HEAD)
            if n_ff:
                EXPERTS.tensors(toy, prefix, silent=block == HEAD)
            if not heads_kv and not n_ff:
                _mamba2(toy, prefix)
        norms(toy, f"blk.{HEAD}.", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
        toy.nextn_of_model_output(f"blk.{HEAD}.")
    return toy.language


def _mamba2(toy: ToyWriter, prefix: str) -> None:
    conv_width = INNER + 2 * GROUPS * STATE
    toy.random(f"{prefix}ssm_in.weight", INNER + conv_width + SSM_HEADS, SHAPE.n_embd)
    toy.random(f"{prefix}ssm_conv1d.weight", conv_width, CONV_KERNEL, scale=0.5)
    toy.random(f"{prefix}ssm_conv1d.bias", conv_width)
    toy.random(f"{prefix}ssm_dt.bias", SSM_HEADS)
    # A negative decay rate keeps the state bounded.
    toy.tensor(f"{prefix}ssm_a", np.full((SSM_HEADS, 1), -0.3, np.float32))
    toy.ones(f"{prefix}ssm_d", SSM_HEADS, 1)
    toy.ones(f"{prefix}ssm_norm.weight", GROUPS, INNER // GROUPS)
    toy.outward(f"{prefix}ssm_out.weight", SHAPE.n_embd, INNER)
