"""The plain pair: a llama target and a smaller llama drafter of one vocabulary, for draft-simple."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
TARGET_BLOCKS = 2
DRAFTER_BLOCKS = 1


def write_pair(target: Path, drafter: Path, knobs: Knobs | None = None) -> Language:
    """Write target and drafter, and return what they say.

    The drafter looks at the last token alone, so ``trunk`` lowers acceptance as ``noise`` does. It drafts for
    any toy target written with the same seed, gap and follow.
    """
    knobs = knobs or Knobs()
    language = Language(knobs)
    _write(target, knobs, language.target_logits, TARGET_BLOCKS, silent=False)
    _write(drafter, knobs, language.drafter_logits, DRAFTER_BLOCKS, silent=True)
    return language


def _write(path: Path, knobs: Knobs, logits: NDArray[np.float32], blocks: int, *, silent: bool) -> None:
    with ToyWriter(path, "llama", SHAPE, knobs) as toy:
        toy.gguf.add_block_count(blocks)
        toy.attention_keys(n_rot=SHAPE.head_dim)
        toy.language_tensors(logits)
        for prefix in (f"blk.{block}." for block in range(blocks)):
            for name in ("attn_norm", "ffn_norm"):
                toy.ones(f"{prefix}{name}.weight", SHAPE.n_embd)
            toy.attention(prefix, silent=silent)
            toy.dense_ffn(prefix, silent=silent)
