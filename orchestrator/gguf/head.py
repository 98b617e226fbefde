"""The MTP head of a model, found by its tensors: what keys announce is often wrong (llama.cpp#26942)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.gguf.architectures import Architecture, Requirements
from orchestrator.gguf.header import TensorInfo

# llama-arch.cpp writes block numbers without leading zeros; MAX_TENSORS bounds them far below six digits.
_BLOCK = re.compile(r"blk\.(?P<block>0|[1-9]\d{0,5})\.(?P<rest>.+)", re.DOTALL)
NEXTN_PREFIX = "nextn."
EH_PROJ = "nextn.eh_proj.weight"
EMBED_TOKENS = "nextn.embed_tokens.weight"
SHARED_HEAD_HEAD = "nextn.shared_head_head.weight"


@dataclass(frozen=True)
class Head:
    """Every tensor of the blocks that have a `blk.N.nextn.*` tensor. `blocks` ascend; `tensors` keep their order."""

    blocks: tuple[int, ...]
    tensors: tuple[TensorInfo, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors, without padding."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def has(self, name: str) -> bool:
        """Whether any of its blocks has a tensor of this name, given without `blk.N.`."""
        return any(split_name(tensor.name)[1] == name for tensor in self.tensors)


def split_name(name: str) -> tuple[int | None, str]:
    """`blk.7.attn_q.weight` as (7, "attn_q.weight"); (None, name) for a tensor of no block."""
    found = _BLOCK.fullmatch(name)
    return (int(found["block"]), found["rest"]) if found else (None, name)


def block_name(block: int, rest: str) -> str:
    """The reverse of `split_name`."""
    return f"blk.{block}.{rest}"


def find_head(tensors: Iterable[TensorInfo]) -> Head | None:
    """The MTP head among the tensors of a file or a model; None where there is none."""
    of_blocks = [(block, rest, tensor) for tensor in tensors for block, rest in (split_name(tensor.name),)]
    blocks = {block for block, rest, _ in of_blocks if block is not None and rest.startswith(NEXTN_PREFIX)}
    if not blocks:
        return None
    return Head(tuple(sorted(blocks)), tuple(tensor for block, _, tensor in of_blocks if block in blocks))


def trunk_blocks(tensors: Iterable[TensorInfo]) -> tuple[int, ...]:
    """Ascending numbers of the blocks that are not of the head. Of a whole model they are 0 to depth - 1, of a head
    alone there are none."""
    blocks: dict[int, bool] = {}
    for tensor in tensors:
        block, rest = split_name(tensor.name)
        if block is not None:
            blocks[block] = blocks.get(block, False) or rest.startswith(NEXTN_PREFIX)
    return tuple(sorted(block for block, is_head in blocks.items() if not is_head))


def missing_tensors(head: Head, arch: Architecture, *, has_shared_expert: bool) -> tuple[str, ...]:
    """Names of the tensors that draft-mtp needs in the head's blocks and that are not there. Of several alternatives
    the one is named that lacks least."""
    needed: Requirements = arch.head + (arch.head_if_shared if has_shared_expert else ())
    missing: list[str] = []
    present = {tensor.name for tensor in head.tensors}
    for block in head.blocks:
        for alternatives in needed:
            lacking = [[n for rest in names if (n := block_name(block, rest)) not in present] for names in alternatives]
            least = min(lacking, key=len)
            missing += least
    return tuple(dict.fromkeys(missing))


def unknown_tensors(head: Head, arch: Architecture) -> tuple[str, ...]:
    """Names of `nextn.*` tensors that the architecture's loader does not ask for: one of them, and llama.cpp refuses
    the whole file for its number of tensors."""
    known = {name for group in arch.head for names in group for name in names} | set(arch.head_optional)
    return tuple(
        tensor.name
        for tensor in head.tensors
        if (rest := split_name(tensor.name)[1]).startswith(NEXTN_PREFIX)
        # An NVFP4 tensor brings its scales along (src/llama-model.cpp, load_tensors).
        and rest.removesuffix("input_scale").removesuffix("scale").removesuffix("weight") + "weight" not in known
    )
