"""Trunks with latent attention: deepseek2, deepseek32 and glm-dsa (llama.cpp, src/models/<name>.cpp).

The latter two choose what to attend to with an indexer; here it always chooses everything.
"""

from pathlib import Path

import numpy as np

from tests.toys.blocks import Experts, LatentAttention, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import CONTEXT_TOKENS, Shape, ToyWriter

SHAPE = Shape()
TRUNK_BLOCKS = 2
ATTENTION = LatentAttention()
EXPERTS = Experts()
INDEXER_HEADS = 2
# llama.cpp rotates indexer keys by a matrix of at least 64 and aborts if they are shorter.
INDEXER_HEAD_DIM = 64


def write_deepseek2(path: Path, knobs: Knobs) -> Language:
    return _write(path, "deepseek2", knobs)


def write_deepseek32(path: Path, knobs: Knobs) -> Language:
    return _write(path, "deepseek32", knobs, indexers=[True] * (TRUNK_BLOCKS + 1))


def write_glm_dsa(path: Path, knobs: Knobs) -> Language:
    """The second trunk block takes the first one's choice; the header lists this for the trunk's blocks alone."""
    return _write(path, "glm-dsa", knobs, indexers=[True, False, False], list_indexers=True)


def _write(
    path: Path, arch: str, knobs: Knobs, *, indexers: list[bool] | None = None, list_indexers: bool = False
) -> Language:
    with ToyWriter(path, arch, SHAPE, knobs) as toy:
        toy.gguf.add_block_count(TRUNK_BLOCKS + 1)
        toy.gguf.add_nextn_predict_layers(1)
        toy.gguf.add_leading_dense_block_count(1)
        ATTENTION.keys(toy)
        EXPERTS.keys(toy)
        if indexers:
            toy.gguf.add_indexer_head_count(INDEXER_HEADS)
            toy.gguf.add_indexer_key_length(INDEXER_HEAD_DIM)
            toy.gguf.add_indexer_top_k(CONTEXT_TOKENS)
        if indexers and list_indexers:
            toy.gguf.add_array(f"{arch}.attention.indexer.types", [int(full) for full in indexers[:TRUNK_BLOCKS]])
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS + 1):
            prefix, is_head = f"blk.{block}.", block == TRUNK_BLOCKS
            norms(toy, prefix, "attn_norm", "ffn_norm")
            ATTENTION.tensors(toy, prefix, silent=is_head)
            if indexers and indexers[block]:
                _indexer(toy, prefix)
            if block == 0:
                toy.dense_ffn(prefix)
            else:
                EXPERTS.tensors(toy, prefix, silent=is_head)
        toy.nextn(f"blk.{TRUNK_BLOCKS}.")
    return toy.language


def _indexer(toy: ToyWriter, prefix: str) -> None:
    toy.ones(f"{prefix}indexer.k_norm.weight", INDEXER_HEAD_DIM)
    toy.tensor(f"{prefix}indexer.k_norm.bias", np.zeros(INDEXER_HEAD_DIM, np.float32))
    toy.random(f"{prefix}indexer.proj.weight", INDEXER_HEADS, SHAPE.n_embd)
    toy.random(f"{prefix}indexer.attn_k.weight", INDEXER_HEAD_DIM, SHAPE.n_embd)
    toy.random(f"{prefix}indexer.attn_q_b.weight", INDEXER_HEADS * INDEXER_HEAD_DIM, ATTENTION.q_rank)
