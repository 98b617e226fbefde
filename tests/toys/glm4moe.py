"""The MTP toy: a dense glm4moe trunk and one MTP block (llama.cpp, src/models/glm4-moe.cpp)."""

from pathlib import Path

from tests.toys.blocks import Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
TRUNK_BLOCKS = 2
EXPERTS = Experts(n_ff=32)


def write_mtp(path: Path, knobs: Knobs | None = None) -> Language:
    """Write the MTP toy to ``path`` and return what it says."""
    with ToyWriter(path, "glm4moe", SHAPE, knobs or Knobs()) as toy:
        toy.gguf.add_block_count(TRUNK_BLOCKS + 1)
        toy.gguf.add_nextn_predict_layers(1)
        toy.gguf.add_leading_dense_block_count(TRUNK_BLOCKS)
        EXPERTS.keys(toy)
        toy.attention_keys(n_rot=SHAPE.head_dim)
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS):
            norms(toy, f"blk.{block}.", "attn_norm", "post_attention_norm")
            toy.attention(f"blk.{block}.")
            toy.dense_ffn(f"blk.{block}.")
        _mtp_block(toy, f"blk.{TRUNK_BLOCKS}.")
    return toy.language


def _mtp_block(toy: ToyWriter, prefix: str) -> None:
    # llama.cpp asserts that the MTP block routes experts, even over a dense trunk.
    norms(toy, prefix, "attn_norm", "post_attention_norm")
    toy.attention(prefix, silent=True)
    EXPERTS.tensors(toy, prefix, silent=True)
    toy.nextn(prefix)
