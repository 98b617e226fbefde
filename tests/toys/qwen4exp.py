"""qwen4exp: parallel residual streams around a delta-net, an attention and an MTP block (src/models/qwen4exp.cpp).

Every mix of the streams is their mean, halved by a gate that is always at rest. Its recurrent state can step back a
bounded number of tokens. Its MTP block has no output matrix.
"""

from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType

from tests.toys.blocks import DeltaNet, Experts
from tests.toys.language import Knobs, Language
from tests.toys.writer import CONTEXT_TOKENS, Shape, ToyWriter

SHAPE = Shape()
RECURRENT_BLOCKS = [True, False, False]
HEAD = len(RECURRENT_BLOCKS) - 1
COMPRESS_RATIOS = [0, 4, 4]
ROPE_SECTIONS = [4, 2, 2, 0]
DELTA_NET = DeltaNet()
EXPERTS = Experts(bias="", weighed_shared=True, gating=ExpertGatingFuncType.SOFTMAX)
STREAMS = 2
LOW_RANK = 8
INDEXER_HEADS = 2


def write_qwen4exp(path: Path, knobs: Knobs) -> Language:
    with ToyWriter(path, "qwen4exp", SHAPE, knobs) as toy:
        _keys(toy)
        toy.language_tensors(toy.language.target_logits, norm=False)
        _mixer(toy, "output_hc")
        for block, recurrent in enumerate(RECURRENT_BLOCKS):
            prefix = f"blk.{block}."
            for part in ("attn", "ffn"):
                _mixer(toy, f"{prefix}hc_{part}")
                toy.random(f"{prefix}hc_{part}_inject.weight", STREAMS, STREAMS * SHAPE.n_embd)
            if recurrent:
                DELTA_NET.tensors(toy, prefix)
            else:
                toy.attention(prefix, gated=True, silent=block == HEAD)
                for name in ("attn_q_norm", "attn_k_norm", "indexer.q_norm", "indexer.k_norm"):
                    toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)
                toy.random(f"{prefix}indexer.q_proj.weight", INDEXER_HEADS * SHAPE.head_dim, SHAPE.n_embd)
                toy.random(f"{prefix}indexer.k_proj.weight", SHAPE.head_dim, SHAPE.n_embd)
            EXPERTS.tensors(toy, prefix, silent=block == HEAD)
        prefix = f"blk.{HEAD}.nextn."
        toy.ones(f"{prefix}enorm.weight", SHAPE.n_embd)
        toy.ones(f"{prefix}hnorm.weight", STREAMS * SHAPE.n_embd)
        _mixer(toy, f"{prefix}hc_head")
        toy.nextn_of_model_output(f"blk.{HEAD}.")
    return toy.language


def _keys(toy: ToyWriter) -> None:
    gguf = toy.gguf
    gguf.add_block_count(HEAD + 1)
    gguf.add_nextn_predict_layers(1)
    gguf.add_rope_dimension_sections(ROPE_SECTIONS)
    toy.by_block("attention.recurrent_layers", RECURRENT_BLOCKS)
    toy.by_block("attention.compress_ratios", COMPRESS_RATIOS)
    DELTA_NET.keys(toy)
    gguf.add_uint32("qwen4exp.hyper_connection.count", STREAMS)
    gguf.add_uint32("qwen4exp.hyper_connection.low_rank", LOW_RANK)
    gguf.add_indexer_head_count(INDEXER_HEADS)
    gguf.add_indexer_key_length(SHAPE.head_dim)
    gguf.add_indexer_top_k(CONTEXT_TOKENS)
    gguf.add_expert_shared_feed_forward_length(EXPERTS.n_ff)
    EXPERTS.keys(toy)
    toy.attention_keys(n_rot=2 * sum(ROPE_SECTIONS))


def _mixer(toy: ToyWriter, name: str) -> None:
    width = STREAMS * SHAPE.n_embd
    # The gate at rest is a half.
    toy.tensor(f"{name}_norm.weight", np.full(width, 2.0, np.float32))
    toy.random(f"{name}_down.weight", LOW_RANK, width)
    toy.tensor(f"{name}_up.weight", np.zeros((width, LOW_RANK), np.float32))
