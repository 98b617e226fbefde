"""deepseek4: parallel residual streams around three kinds of attention, one MTP block (src/models/deepseek4.cpp).

The trunk's blocks attend to a window alone, to it and pooled fours, to it and pooled 128s. Every mix of the streams
weighs them alike, so that all streams stay one.
"""

from pathlib import Path

import numpy as np

from tests.toys.blocks import Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import CONTEXT_TOKENS, Shape, ToyWriter

SHAPE = Shape()
COMPRESS_RATIOS = [0, 4, 128, 0]
HEAD = len(COMPRESS_RATIOS) - 1
SQRT_SOFTPLUS = 4
EXPERTS = Experts(n_ff=8, gating=SQRT_SOFTPLUS)
STREAMS = 4
MIXES = (2 + STREAMS) * STREAMS
N_ROT = SHAPE.head_dim // 2
Q_RANK = 32
OUTPUT_RANK = 16
OUTPUT_GROUPS = 2
WINDOW_TOKENS = 64
INDEXER_HEADS = 2
# llama.cpp rotates indexer keys by a matrix of at least 64 and dies if they are shorter.
INDEXER_HEAD_DIM = 64
CLAMP = 10.0


def write_deepseek4(path: Path, knobs: Knobs) -> Language:
    with ToyWriter(path, "deepseek4", SHAPE, knobs) as toy:
        _keys(toy)
        toy.language_tensors(toy.language.target_logits)
        _mixer(toy, "output_hc", STREAMS, scales=1)
        for block, ratio in enumerate(COMPRESS_RATIOS):
            prefix = f"blk.{block}."
            norms(toy, prefix, "attn_norm", "ffn_norm")
            for part in ("attn", "ffn"):
                _mixer(toy, f"{prefix}hc_{part}", MIXES, scales=3)
            _attention(toy, prefix, silent=block == HEAD)
            if ratio:
                _compressor(toy, f"{prefix}attn_compressor", SHAPE.head_dim, ratio)
            if ratio == 4:
                _compressor(toy, f"{prefix}indexer_compressor", INDEXER_HEAD_DIM, ratio)
                toy.random(f"{prefix}indexer.proj.weight", INDEXER_HEADS, SHAPE.n_embd)
                toy.random(f"{prefix}indexer.attn_q_b.weight", INDEXER_HEADS * INDEXER_HEAD_DIM, Q_RANK)
            EXPERTS.tensors(toy, prefix, silent=block == HEAD)
        toy.nextn(f"blk.{HEAD}.")
    return toy.language


def _keys(toy: ToyWriter) -> None:
    gguf = toy.gguf
    gguf.add_block_count(HEAD + 1)
    gguf.add_nextn_predict_layers(1)
    gguf.add_sliding_window(WINDOW_TOKENS)
    gguf.add_q_lora_rank(Q_RANK)
    gguf.add_indexer_head_count(INDEXER_HEADS)
    gguf.add_indexer_key_length(INDEXER_HEAD_DIM)
    gguf.add_indexer_top_k(CONTEXT_TOKENS)
    gguf.add_uint32("deepseek4.attention.output_group_count", OUTPUT_GROUPS)
    gguf.add_uint32("deepseek4.attention.output_lora_rank", OUTPUT_RANK)
    gguf.add_float32("deepseek4.attention.compress_rope_freq_base", 160000.0)
    gguf.add_uint32("deepseek4.hyper_connection.count", STREAMS)
    gguf.add_uint32("deepseek4.hyper_connection.sinkhorn_iterations", 2)
    gguf.add_float32("deepseek4.hyper_connection.epsilon", 1e-6)
    gguf.add_uint32("deepseek4.hash_layer_count", 0)
    toy.by_block("attention.compress_ratios", COMPRESS_RATIOS)
    toy.by_block("swiglu_clamp_exp", [CLAMP] * (HEAD + 1))
    toy.by_block("swiglu_clamp_shexp", [CLAMP] * (HEAD + 1))
    EXPERTS.keys(toy)
    toy.attention_keys(n_rot=N_ROT)


def _mixer(toy: ToyWriter, name: str, mixes: int, scales: int) -> None:
    toy.tensor(f"{name}_fn.weight", np.zeros((mixes, STREAMS * SHAPE.n_embd), np.float32))
    toy.tensor(f"{name}_base.weight", np.zeros(mixes, np.float32))
    toy.ones(f"{name}_scale.weight", scales)


def _attention(toy: ToyWriter, prefix: str, *, silent: bool) -> None:
    width = SHAPE.n_head * SHAPE.head_dim
    toy.random(f"{prefix}attn_sinks.weight", SHAPE.n_head)
    toy.random(f"{prefix}attn_q_a.weight", Q_RANK, SHAPE.n_embd)
    toy.ones(f"{prefix}attn_q_a_norm.weight", Q_RANK)
    toy.random(f"{prefix}attn_q_b.weight", width, Q_RANK)
    toy.random(f"{prefix}attn_kv.weight", SHAPE.head_dim, SHAPE.n_embd)
    toy.ones(f"{prefix}attn_kv_a_norm.weight", SHAPE.head_dim)
    toy.random(f"{prefix}attn_output_a.weight", OUTPUT_GROUPS * OUTPUT_RANK, width // OUTPUT_GROUPS)
    toy.outward(f"{prefix}attn_output_b.weight", SHAPE.n_embd, OUTPUT_GROUPS * OUTPUT_RANK, silent=silent)


def _compressor(toy: ToyWriter, name: str, head_dim: int, ratio: int) -> None:
    # Pools of four overlap: each carries values for itself and for the next one.
    width = head_dim * (2 if ratio == 4 else 1)
    for part in ("kv", "gate"):
        toy.random(f"{name}_{part}.weight", width, SHAPE.n_embd)
    toy.random(f"{name}_ape.weight", ratio, width)
    toy.ones(f"{name}_norm.weight", head_dim)
