"""bailingmoe3: a KDA block, a latent attention block and an MTP block (llama.cpp, src/models/bailingmoe3.cpp).

Its recurrent state can step back a bounded number of tokens. Its MTP block has no output matrix.
"""

from pathlib import Path

import numpy as np

from tests.toys.blocks import Experts, LatentAttention, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
HEADS_KV_BY_BLOCK = [0, 1, 1]
HEAD = len(HEADS_KV_BY_BLOCK) - 1
ATTENTION = LatentAttention()
EXPERTS = Experts()
KDA_HEAD_DIM = 32
CONV_KERNEL = 4
GATE_LOWER_BOUND = -5.0
CLAMP = 7.0


def write_bailingmoe3(path: Path, knobs: Knobs) -> Language:
    with ToyWriter(path, "bailingmoe3", SHAPE, knobs) as toy:
        toy.gguf.add_block_count(HEAD + 1)
        toy.gguf.add_nextn_predict_layers(1)
        toy.gguf.add_leading_dense_block_count(1)
        toy.gguf.add_ssm_conv_kernel(CONV_KERNEL)
        toy.gguf.add_kda_head_dim(KDA_HEAD_DIM)
        toy.gguf.add_float32("bailingmoe3.kda.gate_lower_bound", GATE_LOWER_BOUND)
        toy.by_block("swiglu_clamp_exp", [0.0, CLAMP, CLAMP])
        toy.by_block("swiglu_clamp_shexp", [0.0, CLAMP, CLAMP])
        ATTENTION.keys(toy, n_head_kv=HEADS_KV_BY_BLOCK)
        EXPERTS.keys(toy)
        toy.language_tensors(toy.language.target_logits)
        for block, heads_kv in enumerate(HEADS_KV_BY_BLOCK):
            prefix = f"blk.{block}."
            norms(toy, prefix, "attn_norm", "ffn_norm")
            if heads_kv:
                ATTENTION.tensors(toy, prefix, silent=block == HEAD)
                toy.random(f"{prefix}attn_gate.weight", SHAPE.n_head, SHAPE.n_embd)
            else:
                _delta_attention(toy, prefix)
            if block == 0:
                toy.dense_ffn(prefix)
            else:
                EXPERTS.tensors(toy, prefix, silent=block == HEAD)
        norms(toy, f"blk.{HEAD}.", "nextn.enorm", "nextn.hnorm", "layer_output_norm")
        toy.nextn_of_model_output(f"blk.{HEAD}.")
    return toy.language


def _delta_attention(toy: ToyWriter, prefix: str) -> None:
    inner = KDA_HEAD_DIM * SHAPE.n_head
    for letter in "qkv":
        toy.random(f"{prefix}attn_{letter}.weight", inner, SHAPE.n_embd)
        toy.random(f"{prefix}ssm_conv1d_{letter}.weight", inner, 1, CONV_KERNEL, scale=0.5)
    for name in ("ssm_f_a", "ssm_g_a"):
        toy.random(f"{prefix}{name}.weight", inner, SHAPE.n_embd)
    toy.random(f"{prefix}ssm_beta.weight", SHAPE.n_head, SHAPE.n_embd)
    toy.tensor(f"{prefix}ssm_a", np.linspace(0.5, 1.0, SHAPE.n_head, dtype=np.float32)[:, None])
    toy.random(f"{prefix}ssm_dt.bias", inner)
    toy.ones(f"{prefix}ssm_norm.weight", KDA_HEAD_DIM)
    toy.outward(f"{prefix}attn_output.weight", SHAPE.n_embd, inner)
