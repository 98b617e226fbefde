"""What is wrong with a model by itself: keys against tensors, and what its MTP head lacks."""

from collections.abc import Iterator, Sequence

from orchestrator.gguf.architectures import ANY_NUMBER
from orchestrator.gguf.contents import Contents
from orchestrator.gguf.head import (
    EH_PROJ,
    NEXTN_PREFIX,
    Head,
    block_name,
    missing_tensors,
    split_name,
    unknown_tensors,
)
from orchestrator.gguf.known import KNOWN_ARCHITECTURES
from orchestrator.gguf.problem import error, warning
from orchestrator.gguf.tokenizer import shown
from orchestrator.gguf.vocabulary import vocabulary_problems
from orchestrator.schemas.gguf import Problem

# Arrays with a value a block, and keys that may also hold one value for all: llama.cpp refuses another length
# (get_key_or_arr of src/llama-model-loader.cpp).
_BLOCK_ARRAYS = (
    *("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length"),
    *("expert_used_count", "swiglu_clamp_exp", "swiglu_clamp_shexp", "attention.recurrent_layers"),
)
# llama.cpp takes this one as long as it comes: a block without a value attends to everything.
_UNCHECKED_ARRAY = "attention.sliding_window_pattern"
# deepseek4 takes a longer one.
_RATIOS = "attention.compress_ratios"
# Blocks without any tensor, and blocks that block_count does not tell of, are right there.
_IRREGULAR = frozenset({"deci", "graniteswitch", "hrm_text", "wavtokenizer-dec"})
_NAMED = 5


def file_problems(contents: Contents) -> Iterator[Problem]:
    """What is wrong with the files, of whatever role."""
    if contents.missing:
        total = len(contents.missing) + len(contents.shards)
        yield error(
            "missing_shards", f"{len(contents.missing)} of {total} shards are missing: {_some(contents.missing)}"
        )
    if contents.split_error:
        yield error("split_disagrees", contents.split_error)


def model_problems(contents: Contents) -> Iterator[Problem]:
    """What keeps llama.cpp from loading a model, or a drafter that is one; the head is `head_problems`' matter."""
    name = contents.header.architecture
    if name not in KNOWN_ARCHITECTURES:
        yield error("unknown_architecture", f"llama.cpp at the pin does not know the architecture {shown(name)!r}")
        return
    blocks, heads = contents.announced_blocks, contents.announced_heads
    if blocks is None or not 1 <= blocks <= ANY_NUMBER or heads > blocks:
        yield error(
            "block_count_invalid",
            f"block_count is {blocks} and nextn_predict_layers {heads}; llama.cpp takes 1 to {ANY_NUMBER} blocks, not "
            "fewer than those of the head",
        )
        return
    if not contents.missing:
        yield from _block_problems(contents, blocks, heads)
    yield from _array_problems(contents, blocks, heads)
    if not contents.architecture.drafts_for and name not in _IRREGULAR:
        yield from vocabulary_problems(contents)


def head_problems(contents: Contents) -> Iterator[Problem]:
    """What keeps llama.cpp from loading the head of a model or from drafting with it; nothing where there is none."""
    head, architecture = contents.head, contents.architecture
    if head is None or contents.missing:
        return
    if not architecture.drafts_with_mtp:
        what = "loads this head and has no graph for it" if architecture.keeps_head else "knows no head"
        yield warning(
            "mtp_unsupported", f"llama.cpp at the pin {what} in the architecture {shown(architecture.name)!r}"
        )
        return
    if len(head.blocks) > architecture.max_head_blocks:
        yield error(
            "too_many_head_blocks",
            f"the head has {len(head.blocks)} blocks, and llama.cpp drafts with {architecture.max_head_blocks} of "
            f"{architecture.name} at most: it aborts",
        )
    if missing := missing_head_tensors(contents):
        yield error(
            "missing_head_tensor",
            f"the head lacks {len(missing)} tensors that {architecture.name} needs: {_some(missing)}",
        )
    if unknown := unknown_tensors(head, architecture):
        yield error(
            "unknown_head_tensor",
            f"llama.cpp does not load a file with tensors it does not know in {architecture.name}: {_some(unknown)}",
        )
    dense = contents.integer("leading_dense_block_count") or 0
    if architecture.head_is_moe and dense > head.blocks[0]:
        yield error(
            "head_not_moe",
            f"leading_dense_block_count is {dense}, which makes block {head.blocks[0]} of the head a dense one; "
            f"{architecture.name} drafts with a mixture of experts only",
        )


def missing_head_tensors(contents: Contents) -> tuple[str, ...]:
    """Names of the tensors that the head's blocks need and lack, of as many blocks as llama.cpp takes at most."""
    if (head := contents.head) is None:
        return ()
    bounded = Head(head.blocks[:ANY_NUMBER], head.tensors)
    shared = bool(contents.integer("expert_shared_count"))
    return missing_tensors(bounded, contents.architecture, has_shared_expert=shared)


def loads_unused_head(contents: Contents) -> bool:
    """Whether llama.cpp loads a file whose head lacks tensors, as long as nothing drafts with it."""
    architecture, head = contents.architecture, contents.head
    first = (contents.announced_blocks or 0) - contents.announced_heads
    if head is None or block_name(first, EH_PROJ) not in contents.tensors:
        # By this tensor llama.cpp tells whether there is a head at all.
        return architecture.loads_head and architecture.announced_head_may_lack
    return all(split_name(name)[1] in architecture.head_to_draft for name in missing_head_tensors(contents))


def _block_problems(contents: Contents, blocks: int, heads: int) -> Iterator[Problem]:
    if contents.header.architecture in _IRREGULAR or contents.architecture.drafts_for or not contents.blocks:
        return
    trunk, head = contents.trunk, contents.head.blocks if contents.head else ()
    first = blocks - heads
    says = f"block_count is {blocks} and nextn_predict_layers {heads}"
    if heads and not head and trunk == tuple(range(first)):
        may = contents.architecture.announced_head_may_lack
        then = "loads it for anything but draft-mtp" if may else "does not load such a file"
        yield (warning if may else error)(
            "head_missing", f"{says}, but the file has no tensor of a head; llama.cpp {then}"
        )
    elif heads and not head and trunk == tuple(range(blocks)):
        yield error(
            "missing_head_tensor",
            f"{says}, but {_numbers(range(first, blocks))}, which should be the head, has no {NEXTN_PREFIX}* tensor",
        )
    elif (trunk and trunk != tuple(range(first))) or (head and head != tuple(range(first, blocks))):
        yield error(
            "blocks_disagree",
            f"{says}: {_numbers(range(first))} for the trunk and {_numbers(range(first, blocks))} for a head; but the "
            f"tensors have a trunk of {_numbers(trunk)} and a head of {_numbers(head)}",
        )


def _array_problems(contents: Contents, blocks: int, heads: int) -> Iterator[Problem]:
    lengths = dict.fromkeys(_BLOCK_ARRAYS, blocks) | dict.fromkeys(contents.architecture.trunk_arrays, blocks - heads)
    for name, expected in lengths.items():
        array = contents.header.array(contents.header.arch_key(name))
        if array is not None and len(array) != expected:
            yield error(
                "array_length",
                f"{name} has {len(array)} values, expected {expected}: block_count is {blocks} and "
                f"nextn_predict_layers {heads}",
            )
    ratios = contents.header.array(contents.header.arch_key(_RATIOS))
    most = {"qwen4exp": blocks, "deepseek4": ANY_NUMBER}.get(contents.header.architecture)
    if ratios is not None and most is not None and not blocks <= len(ratios) <= most:
        yield error("array_length", f"{_RATIOS} has {len(ratios)} values for {blocks} blocks")
    pattern = contents.header.array(contents.header.arch_key(_UNCHECKED_ARRAY))
    if pattern is not None and len(pattern) != blocks:
        yield warning(
            "array_length",
            f"{_UNCHECKED_ARRAY} has {len(pattern)} values for {blocks} blocks; llama.cpp takes blocks without a value "
            "for full attention",
        )


def _numbers(blocks: Sequence[int]) -> str:
    """Block numbers in words; `blocks` ascend."""
    if not blocks:
        return "no blocks"
    if len(blocks) == 1:
        return f"block {blocks[0]}"
    if blocks[-1] - blocks[0] == len(blocks) - 1:
        return f"blocks {blocks[0]} to {blocks[-1]}"
    return f"blocks {_some([str(block) for block in blocks])}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
