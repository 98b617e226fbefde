"""Whether the head of a donor can draft for a base: every reason why not, before a byte is written."""

from collections.abc import Iterator
from typing import Any

from orchestrator.gguf.arrays import value_at
from orchestrator.gguf.donor import DONOR_TOKENS, DONOR_TOKENS_SHA256, Donor, tokens_sha256
from orchestrator.gguf.head import (
    EH_PROJ,
    EMBED_TOKENS,
    SHARED_HEAD_HEAD,
    missing_tensors,
    split_name,
    unknown_tensors,
)
from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.tokenizer import TOKENS, compare_tokenizers
from orchestrator.gguf.trunk import HEAD_COUNT, WholeModel, refused, tensors_of

_SECTIONS = "rope.dimension_sections"
# Values that shape the head's block.
_MUST_AGREE = (
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "rope.dimension_count",
    _SECTIONS,
)
_DENSE = ("feed_forward_length",)
_EXPERTS = (
    "expert_count",
    "expert_shared_count",
    "expert_feed_forward_length",
)
# They change what the head says, not whether it works, and those who tune a model change some of them. With what
# llama.cpp takes where a file does not say (src/llama-model.cpp), if that is known.
_SHOULD_AGREE: dict[str, Any] = {
    "attention.layer_norm_rms_epsilon": None,
    "attention.layer_norm_epsilon": None,
    "attention.sliding_window": None,
    "expert_gating_func": None,
    "expert_used_count": None,
    "expert_weights_norm": None,
    "expert_weights_scale": None,
    "rope.freq_base": 10000.0,
    "rope.scaling.factor": None,
    "rope.scaling.type": None,
}
# Where one of these is an array, shapes differ from block to block.
_SHAPING = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length")
# In the recurrent blocks of a hybrid it is another matrix than in a head.
_FUSED_QKV = "attn_qkv.weight"
_MOST_LISTED = 5


def check_fit(base: WholeModel, donor: Donor) -> list[str]:
    """Warnings. SlipstreamError graft_refused says why the head cannot draft for the base."""
    _check_architecture(base, donor)
    _check_widths(base, donor)
    warnings = _check_vocabulary(base, donor)
    _check_values(base, donor)
    _check_attention(base, donor)
    _check_shapes(base, donor)
    return [*warnings, *_differences(base, donor)]


def check_tensors(donor: Donor, base: WholeModel, *, has_shared_expert: bool) -> None:
    """SlipstreamError graft_refused names the tensors that the head lacks, or that llama.cpp does not know."""
    if missing := missing_tensors(donor.head, base.arch, has_shared_expert=has_shared_expert):
        raise refused(
            f"the head of {donor.name} lacks {_listed(missing)}: draft-mtp needs them for {base.arch.name}",
            tensor=missing[0],
        )
    if unknown := unknown_tensors(donor.head, base.arch):
        raise refused(
            f"the head of {donor.name} has {_listed(unknown)}, which llama.cpp does not know in {base.arch.name}: "
            "it would load no file that has them",
            tensor=unknown[0],
        )


def _check_architecture(base: WholeModel, donor: Donor) -> None:
    arch, blocks = base.arch, len(donor.head.blocks)
    if donor.model.architecture != arch.name:
        raise refused(
            f"{base.name} is {arch.name}, but the head of {donor.name} is {donor.model.architecture}",
            key="general.architecture",
        )
    if not arch.drafts_with_mtp:
        raise refused(f"the pinned llama.cpp cannot draft with an MTP head of {arch.name}", key="general.architecture")
    if blocks > arch.max_head_blocks:
        raise refused(
            f"{donor.name} has {blocks} head blocks, but {arch.name} drafts with {arch.max_head_blocks} only",
            key=base.header.arch_key(HEAD_COUNT),
        )


def _check_widths(base: WholeModel, donor: Donor) -> None:
    """Width of the stream, and vocabulary where the head brings matrices of its own."""
    width, vocabulary = base.width, base.vocabulary_tokens
    expected = {
        EH_PROJ: (2 * width, width),
        EMBED_TOKENS: (width, vocabulary),
        SHARED_HEAD_HEAD: (width, vocabulary),
        "nextn.enorm.weight": (width,),
        "nextn.shared_head_norm.weight": (width,),
    }
    for tensor in donor.head.tensors:
        wanted = expected.get(split_name(tensor.name)[1])
        if wanted is not None and tensor.shape != wanted:
            raise refused(
                f"{tensor.name} of {donor.name} is {list(tensor.shape)}, expected {list(wanted)}: {base.name} is "
                f"{width} wide and has {vocabulary} tokens",
                tensor=tensor.name,
            )


def _check_vocabulary(base: WholeModel, donor: Donor) -> list[str]:
    """Warnings of a tokenizer that is not quite the base's. A donor without one may have its digest."""
    ours = base.header.array(TOKENS)
    if ours is None:
        return []
    if donor.header.array(TOKENS) is not None:
        problems = compare_tokenizers(base.header, donor.header)
        if errors := [problem.message for problem in problems if problem.severity == "error"]:
            raise refused(
                f"the tokenizers of {base.name} (target) and {donor.name} (drafter) differ: {'; '.join(errors)}",
                key=TOKENS,
            )
        return [problem.message for problem in problems]
    digest = donor.header.text(DONOR_TOKENS_SHA256)
    if digest is not None and digest != (own := tokens_sha256(ours)):
        raise refused(
            f"{donor.name} was made for another vocabulary: the sha256 of its {donor.header.integer(DONOR_TOKENS)} "
            f"tokens is {digest[:64]}, that of the {ours.count} of {base.name} is {own}",
            hint="if only names of special tokens differ, take the whole model that it is from as donor",
            key=TOKENS,
        )
    return []


def _check_values(base: WholeModel, donor: Donor) -> None:
    names = [*_MUST_AGREE, *(_DENSE if donor.head.has("ffn_gate.weight") else ())]
    names += _EXPERTS if donor.has_experts else ()
    for name in names:
        key = base.header.arch_key(name)
        ours = _said(base.header, name, None)
        if isinstance(ours, Array):
            continue  # one value a block, to which the head's own is added
        for block in donor.head.blocks:
            theirs = _said(donor.header, name, block)
            if theirs is not None and ours not in (None, theirs):
                raise refused(f"{key} is {ours} in {base.name}, but {theirs} in {donor.name}", key=key)


def _said(header: Header, name: str, block: int | None) -> Any:
    """What a file says of one block, or of all; sections are no matter of blocks."""
    value = header.value(header.arch_key(name))
    if name == _SECTIONS:
        return value.values() if isinstance(value, Array) and value.count <= len("xyzw") else None
    return value if block is None else value_at(header, name, block)


def _check_attention(base: WholeModel, donor: Donor) -> None:
    """Number and size of attention heads, as the keys say them, against the shapes."""
    for tensor in donor.head.tensors:
        block, rest = split_name(tensor.name)
        part = {"attn_k.weight": "key", "attn_v.weight": "value"}.get(rest)
        if block is None or part is None or len(tensor.shape) != 2:
            continue
        heads, kv_heads = (
            _of_block(base, donor, f"attention.{name}", block) for name in ("head_count", "head_count_kv")
        )
        kv_heads = heads if kv_heads is None else kv_heads
        length = base.header.integer(base.header.arch_key(f"attention.{part}_length"))
        sliding = base.header.integer(base.header.arch_key(f"attention.{part}_length_swa"))
        if length is None and heads:
            length = base.width // heads
        expected = {kv_heads * size for size in (length, sliding) if size is not None and kv_heads is not None}
        if expected and tensor.shape[1] not in expected:
            raise refused(
                f"{tensor.name} of {donor.name} has {tensor.shape[1]} rows, expected {min(expected)}: {base.name} has "
                f"{kv_heads} {part} heads of {length}",
                tensor=tensor.name,
            )


def _of_block(base: WholeModel, donor: Donor, name: str, block: int) -> int | None:
    """A whole number that a block of the head gets: the base's, or the donor's own where blocks differ."""
    value = base.header.value(base.header.arch_key(name))
    if isinstance(value, Array):
        value = value_at(donor.header, name, block)
    return value if isinstance(value, int) else None


def _check_shapes(base: WholeModel, donor: Donor) -> None:
    """A tensor of the head has the shape that it has in some block of the trunk."""
    if any(base.header.array(base.header.arch_key(name)) is not None for name in _SHAPING):
        return
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for info in tensors_of(base.model):
        block, rest = split_name(info.name)
        if block is not None and block < base.depth.trunk and (base.arch.kind, rest) != ("hybrid", _FUSED_QKV):
            shapes.setdefault(rest, set()).add(info.shape)
    for tensor in donor.head.tensors:
        known = shapes.get(split_name(tensor.name)[1])
        if known and tensor.shape not in known:
            raise refused(
                f"{tensor.name} of {donor.name} is {list(tensor.shape)}, but in the blocks of {base.name} it is "
                f"{' or '.join(str(list(shape)) for shape in sorted(known))}",
                tensor=tensor.name,
            )


def _differences(base: WholeModel, donor: Donor) -> Iterator[str]:
    for name, default in _SHOULD_AGREE.items():
        key = base.header.arch_key(name)
        ours, theirs = base.header.value(key, default), donor.header.value(key)
        if None not in (ours, theirs) and not isinstance(ours, Array | None) and ours != theirs:
            yield f"{key} is {ours} in {base.name}, but {theirs} in {donor.name}: the head may draft worse"


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
