"""Trunks with sliding windows: step35, mimo2 and cohere2moe (llama.cpp, src/models/<name>.cpp).

step35 and mimo2 may have several MTP blocks, each of which drafts one token further.
"""

from pathlib import Path

from tests.toys.blocks import Experts, norms
from tests.toys.language import Knobs, Language
from tests.toys.writer import Shape, ToyWriter

SHAPE = Shape()
WIDE_HEADS = 4
WINDOW_TOKENS = 64
SLIDING_BLOCKS = [False, True]
EXPERTS = Experts()
EXPERTS_WITHOUT_BIAS = Experts(bias="")
EXPERTS_WITHOUT_SHARED = Experts(shared=False)
CLAMP = 7.0


def write_step35(path: Path, knobs: Knobs, heads: int = 1) -> Language:
    """A dense and an expert block of different numbers of heads, gated per head; dense MTP blocks."""
    sliding = [*SLIDING_BLOCKS, *[True] * heads]
    n_head = [WIDE_HEADS if slides else SHAPE.n_head for slides in sliding]
    with ToyWriter(path, "step35", SHAPE, knobs, n_head=n_head) as toy:
        _count_blocks(toy, heads)
        _window_keys(toy, sliding)
        EXPERTS.keys(toy)
        toy.gguf.add_expert_shared_feed_forward_length(EXPERTS.n_ff)
        toy.by_block("swiglu_clamp_exp", [0.0, CLAMP, *[0.0] * heads])
        toy.by_block("swiglu_clamp_shexp", [0.0, CLAMP, *[0.0] * heads])
        toy.attention_keys(n_rot=SHAPE.head_dim, n_head_kv=[SHAPE.n_head_kv] * len(sliding))
        toy.language_tensors(toy.language.target_logits)
        for block in range(len(sliding)):
            prefix, is_head = f"blk.{block}.", block >= len(SLIDING_BLOCKS)
            norms(toy, prefix, "attn_norm", "ffn_norm")
            for name in ("attn_q_norm", "attn_k_norm"):
                toy.ones(f"{prefix}{name}.weight", SHAPE.head_dim)
            toy.attention(prefix, silent=is_head, n_head=n_head[block])
            toy.random(f"{prefix}attn_gate.weight", n_head[block], SHAPE.n_embd)
            if block == 1:
                EXPERTS.tensors(toy, prefix)
            else:
                toy.dense_ffn(prefix, silent=is_head)
            if is_head:
                toy.nextn(prefix)
    return toy.language


def write_mimo2(path: Path, knobs: Knobs, heads: int = 1) -> Language:
    """Joined attn_qkv, without which mimo2 drafts nothing; a dense and an expert block, dense MTP blocks."""
    sliding = [*SLIDING_BLOCKS, *[True] * heads]
    with ToyWriter(path, "mimo2", SHAPE, knobs, n_ff=[SHAPE.n_ff] * len(sliding)) as toy:
        _count_blocks(toy, heads)
        _window_keys(toy, sliding)
        EXPERTS_WITHOUT_SHARED.keys(toy)
        toy.attention_keys(n_rot=SHAPE.head_dim, n_head_kv=[SHAPE.n_head_kv] * len(sliding))
        toy.language_tensors(toy.language.target_logits)
        for block, slides in enumerate(sliding):
            prefix, is_head = f"blk.{block}.", block >= len(SLIDING_BLOCKS)
            norms(toy, prefix, "attn_norm", "ffn_norm")
            toy.attention(prefix, fused=True, silent=is_head)
            if slides:
                toy.random(f"{prefix}attn_sinks.weight", SHAPE.n_head)
            if block == 1:
                EXPERTS_WITHOUT_SHARED.tensors(toy, prefix)
            else:
                toy.dense_ffn(prefix, silent=is_head)
            if is_head:
                toy.nextn(prefix)
    return toy.language


def write_cohere2moe(path: Path, knobs: Knobs) -> Language:
    """Attention and experts side by side behind one norm; an expert MTP block."""
    head = len(SLIDING_BLOCKS)
    with ToyWriter(path, "cohere2moe", SHAPE, knobs) as toy:
        _count_blocks(toy, 1)
        _window_keys(toy, [*SLIDING_BLOCKS, False])
        toy.gguf.add_logit_scale(1.0)
        toy.gguf.add_leading_dense_block_count(1)
        EXPERTS_WITHOUT_BIAS.keys(toy)
        toy.attention_keys(n_rot=SHAPE.head_dim)
        toy.language_tensors(toy.language.target_logits)
        for block in range(head + 1):
            prefix = f"blk.{block}."
            norms(toy, prefix, "attn_norm")
            toy.attention(prefix, silent=block == head)
            if block == 0:
                toy.dense_ffn(prefix)
            else:
                EXPERTS_WITHOUT_BIAS.tensors(toy, prefix, silent=block == head)
        toy.nextn(f"blk.{head}.")
    return toy.language


def _count_blocks(toy: ToyWriter, heads: int) -> None:
    toy.gguf.add_block_count(len(SLIDING_BLOCKS) + heads)
    toy.gguf.add_nextn_predict_layers(heads)


def _window_keys(toy: ToyWriter, sliding: list[bool]) -> None:
    toy.gguf.add_sliding_window(WINDOW_TOKENS)
    toy.by_block("attention.sliding_window_pattern", sliding)
