"""The hybrid toy: gated delta-net and attention blocks, one MTP block (llama.cpp, src/models/qwen35.cpp).

Its recurrent state can step back a bounded number of tokens, so draft-mtp verifies without a replay.
"""

from pathlib import Path

from tests.toys.blocks import DeltaNet, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape(head_dim=64)
TRUNK_BLOCKS = 4
ATTENTION_INTERVAL = 2
ROPE_SECTIONS = [8, 4, 4, 0]
DELTA_NET = DeltaNet()


def write_hybrid(path: Path, knobs: Knobs | None = None) -> Language:
    """Write the hybrid toy to ``path`` and return what it says."""
    with ToyWriter(path, "qwen35", SHAPE, knobs or Knobs()) as toy:
        toy.gguf.add_block_count(TRUNK_BLOCKS + 1)
        toy.gguf.add_nextn_predict_layers(1)
        toy.gguf.add_rope_dimension_sections(ROPE_SECTIONS)
        toy.gguf.add_rope_freq_base(10000.0)
        DELTA_NET.keys(toy)
        toy.gguf.add_full_attention_interval(ATTENTION_INTERVAL)
        toy.attention_keys(n_rot=2 * sum(ROPE_SECTIONS))
        toy.language_tensors(toy.language.target_logits)
        for block in range(TRUNK_BLOCKS):
            prefix = f"blk.{block}."
            if (block + 1) % ATTENTION_INTERVAL == 0:
                _attention_block(toy, prefix, silent=False)
            else:
                _norms_and_ffn(toy, prefix, silent=False)
                DELTA_NET.tensors(toy, prefix)
        _attention_block(toy, f"blk.{TRUNK_BLOCKS}.", silent=True)
        toy.nextn(f"blk.{TRUNK_BLOCKS}.")
    return toy.language


def _norms_and_ffn(toy: ToyWriter, prefix: str, *, silent: bool) -> None:
    norms(toy, prefix, "attn_norm", "post_attention_norm")
    toy.dense_ffn(prefix, silent=silent)


def _attention_block(toy: ToyWriter, prefix: str, *, silent: bool) -> None:
    _norms_and_ffn(toy, prefix, silent=silent)
    toy.attention(prefix, gated=True, silent=silent)
    for name in ("attn_q_norm", "attn_k_norm"):
        toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)
