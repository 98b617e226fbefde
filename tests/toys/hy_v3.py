"""hy_v3: a dense and an expert block, and expert MTP blocks (llama.cpp, src/models/hy-v3.cpp)."""

from pathlib import Path

from tests.toys.blocks import Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
TRUNK_BLOCKS = 2
EXPERTS = Experts(bias="exp_probs_b")


def write_hy_v3(path: Path, knobs: Knobs, heads: int = 1) -> Language:
    with ToyWriter(path, "hy_v3", SHAPE, knobs) as toy:
        toy.gguf.add_block_count(TRUNK_BLOCKS + heads)
        toy.gguf.add_nextn_predict_layers(heads)
        EXPERTS.keys(toy, n_ff=[EXPERTS.n_ff] * (TRUNK_BLOCKS + heads))
        toy.attention_keys(n_rot=SHAPE.head_dim)
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS + heads):
            prefix, is_head = f"blk.{block}.", block >= TRUNK_BLOCKS
            norms(toy, prefix, "attn_norm", "ffn_norm")
            for name in ("attn_q_norm", "attn_k_norm"):
                toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)
            toy.attention(prefix, silent=is_head)
            if block == 0:
                toy.dense_ffn(prefix)
            else:
                EXPERTS.tensors(toy, prefix, silent=is_head)
            if is_head:
                toy.nextn(prefix)
    return toy.language
