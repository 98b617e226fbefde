"""Keys whose value is an array with one element a block, made longer or shorter with the model (field case 13).

llama.cpp refuses a file where such an array has another length than block_count (get_key_or_arr), or, where it does
not look, takes a missing element for 0 (get_arr). Which arrays count blocks is told by their length, but for the
names listed here.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import Architecture
from orchestrator.gguf.header import Array, Header, KeyValue
from orchestrator.gguf.types import SCALARS, ValueType
from orchestrator.gguf.writer import array, elements_of, entry

# Read with an exact length by the loaders that draft with MTP (src/llama-model.cpp, src/models/*.cpp).
_BY_BLOCK = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
# Likewise, but of whatever length: what goes beyond the last block is ignored.
_SLIDING_WINDOWS = "attention.sliding_window_pattern"
_BY_BLOCK_OR_LONGER = ("attention.compress_ratios", _SLIDING_WINDOWS)
# They have nothing to do with blocks, though a small model may have as many.
_OTHER = ("rope.dimension_sections",)
_OTHER_PREFIXES = ("ple.",)
# LLAMA_MAX_LAYERS is 512: a longer array has no element for a block, and is not decoded.
_MAX_BLOCKS = 4096


@dataclass(frozen=True)
class Depth:
    """How many blocks a model has: by its tensors those of the trunk, by its keys those of a head."""

    trunk: int
    announced: int

    @property
    def blocks(self) -> int:
        """`block_count`."""
        return self.trunk + self.announced


def extended(base: Header, depth: Depth, donor: Header, blocks: Sequence[int], arch: Architecture) -> list[KeyValue]:
    """The arrays of `base` with an element for each head block, numbered `blocks` in the donor; those that change.

    An element is the donor's own; where the donor does not say, that of a base which announces a head.
    SlipstreamError graft_refused where neither says, and llama.cpp would not take the array as it is.
    """
    changed: list[KeyValue] = []
    for name, key, value in _by_block(base, depth, arch):
        if name in _BY_BLOCK_OR_LONGER and value.count >= depth.trunk + max(depth.announced + 1, len(blocks)):
            continue
        own = elements_of(value)
        known = own[depth.trunk :]
        head = [
            _of_donor(base, donor, key, block) or (known[i] if i < len(known) else None)
            for i, block in enumerate(blocks)
        ]
        if name == _SLIDING_WINDOWS and None in head:
            # What the array does not tell of attends to everything.
            head = head[: head.index(None)]
        if None in head:
            block = blocks[head.index(None)]
            raise _refused(
                key.name,
                f"{base.source_name} has {value.count} values of {key.name}, one a block, and {donor.source_name} does "
                f"not say which one its block {block} needs",
            )
        new = entry(key.name, ValueType.ARRAY, array(value.type, [*own[: depth.trunk], *(e for e in head if e)]))
        if new.raw != key.raw:
            changed.append(new)
    return changed


def shortened(header: Header, depth: Depth, arch: Architecture) -> list[KeyValue]:
    """The arrays of a model without the elements of its head; those that change."""
    return [
        entry(key.name, ValueType.ARRAY, array(value.type, elements_of(value)[: depth.trunk]))
        for _, key, value in _by_block(header, depth, arch)
        if depth.trunk < value.count == depth.blocks
    ]


def value_at(header: Header, name: str, block: int) -> Any:
    """The value of `<arch>.<name>` for a block: the scalar, or the element; None where the file does not say."""
    value = header.value(header.arch_key(name))
    if not isinstance(value, Array):
        return value
    return value.values()[block] if block < value.count <= _MAX_BLOCKS else None


def _by_block(header: Header, depth: Depth, arch: Architecture) -> Iterator[tuple[str, KeyValue, Array]]:
    """Name without architecture, key and value of every array with one element a block."""
    prefix = header.arch_key("")
    for key in header.keys.values():
        if key.type is not ValueType.ARRAY or not key.name.startswith(prefix):
            continue
        name = key.name.removeprefix(prefix)
        value = header.array(key.name)
        if value is None or name in (*_OTHER, *arch.trunk_arrays) or name.startswith(_OTHER_PREFIXES):
            continue
        if name in _BY_BLOCK or name in _BY_BLOCK_OR_LONGER:
            _check_length(header, key, value, depth, or_longer=name in _BY_BLOCK_OR_LONGER)
        elif value.count != depth.blocks:
            continue
        yield name, key, value


def _check_length(header: Header, key: KeyValue, value: Array, depth: Depth, *, or_longer: bool) -> None:
    if value.count in (depth.trunk, depth.blocks) or (or_longer and value.count > depth.trunk):
        return
    expected = f"{depth.trunk}" + (f" or {depth.blocks}" if depth.announced else "")
    raise _refused(
        key.name,
        f"{header.source_name}: {key.name} has {value.count} values, expected {expected}: by its tensors the model has "
        f"{depth.trunk} trunk blocks",
    )


def _of_donor(base: Header, donor: Header, key: KeyValue, block: int) -> memoryview | None:
    """The donor's element for its block, as one of the base's array; None where it does not say."""
    found = donor.keys.get(key.name)
    if found is None:
        return None
    value = found.value
    if isinstance(value, Array):
        if not block < value.count <= _MAX_BLOCKS:
            return None
        type_, raw = value.type, elements_of(value)[block]
        plain = value.values()[block]
    else:
        type_, raw, plain = found.type, None, value
    wanted = base.array(key.name)
    assert wanted is not None
    if raw is not None and type_ is wanted.type:
        return raw
    if wanted.type in SCALARS and type_ in SCALARS:
        # Writers disagree about the type: gguf-py makes INT32 of every integer array.
        try:
            converted = SCALARS[wanted.type].pack(plain)
        except (struct.error, OverflowError):
            converted = b""
        if converted and SCALARS[wanted.type].unpack(converted)[0] == plain:
            return memoryview(converted)
    if type_ is wanted.type is ValueType.STRING:
        return memoryview(struct.pack("<Q", len(str(plain).encode())) + str(plain).encode())
    raise _refused(
        key.name,
        f"{key.name} of {donor.source_name} is {plain!r} ({type_.name}) for block {block}, which does not fit into the "
        f"{wanted.type.name} array of {base.source_name}",
    )


def _refused(key: str, message: str) -> SlipstreamError:
    return SlipstreamError(Code.GRAFT_REFUSED, message, details={"key": key})
