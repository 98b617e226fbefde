"""The files of a model that has been changed: keys edited, tensors regrouped, shards numbered."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.header import Array, Header, KeyValue
from orchestrator.gguf.model import (
    SPLIT_COUNT,
    SPLIT_NUMBER,
    SPLIT_TENSORS,
    GgufModel,
    shard_name,
    shard_names,
    shard_stem,
)
from orchestrator.gguf.trunk import refused
from orchestrator.gguf.types import DEFAULT_ALIGNMENT, ValueType
from orchestrator.gguf.writer import PADDING_KEY, NewFile, NewTensor, entry, padded, tensor_of
from orchestrator.schemas.gguf import KeyChange

# Keys that say how a file came to be; they go when it is changed again.
GRAFT_PREFIX = "slipstream.graft."
_ALIGNMENT = "general.alignment"
# As llama.cpp's gguf-split writes them, and its loader demands.
_SPLIT_TYPES = {
    SPLIT_NUMBER: ValueType.UINT16,
    SPLIT_COUNT: ValueType.UINT16,
    SPLIT_TENSORS: ValueType.INT32,
}
_MOST_SHOWN_VALUES = 64
_MOST_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Group:
    """Tensors that stay in one file together. `header` is that of the file they are from; None for a new one."""

    header: Header | None
    tensors: tuple[NewTensor, ...]


def kept_groups(model: GgufModel, removed: frozenset[str] = frozenset()) -> list[Group]:
    """A group for each shard, without some tensors; a later shard goes when it has none left."""
    groups = [
        Group(
            shard.header,
            tuple(
                tensor_of(shard.path, shard.header, t) for t in shard.header.tensors.values() if t.name not in removed
            ),
        )
        for shard in model.shards
    ]
    return [groups[0], *(group for group in groups[1:] if group.tensors)]


def new_files(first: Header, groups: Sequence[Group], edits: Mapping[str, KeyValue | None], name: str) -> list[NewFile]:
    """The files of the groups: one of that name, or shards whose names follow from it.

    `first` has the keys of the model. `edits` has a new entry for a key, or None for one that goes; keys it adds come
    last, in its order.
    """
    if len(groups) == 1:
        _check_single_name(name)
        gone: dict[str, KeyValue | None] = dict.fromkeys(_SPLIT_TYPES)
        return [_new_file(first, name, {**gone, **edits}, groups[0].tensors)]
    stem, count = _stem(name, len(groups)), len(groups)
    total = sum(len(group.tensors) for group in groups)
    files: list[NewFile] = []
    for number, group in enumerate(groups):
        header = group.header or first
        split = _split_edits(header, first, number, count, total)
        if number == 0:
            files.append(_new_file(first, shard_name(stem, 0, count), {**edits, **split}, group.tensors))
        elif group.header is not None:
            files.append(_new_file(group.header, shard_name(stem, number, count), split, group.tensors))
        else:
            files.append(_extra_shard(first, shard_name(stem, number, count), split, group.tensors))
    return files


def merged(groups: Sequence[Group]) -> list[Group]:
    """All tensors in one group."""
    return [Group(groups[0].header, tuple(tensor for group in groups for tensor in group.tensors))]


def out_names(model: GgufModel, name: str) -> list[str]:
    """Names of copies of the model's files."""
    if len(model.shards) == 1:
        _check_single_name(name)
        return [name]
    stem, count = _stem(name, len(model.shards)), len(model.shards)
    return [shard_name(stem, number, count) for number in range(count)]


def with_integer(header: Header, key: str, value: int, *, default: ValueType = ValueType.UINT32) -> KeyValue:
    """A key with another whole number, of the type it has."""
    found = header.keys.get(key)
    type_ = found.type if found is not None else default
    if not type_.is_integer:
        raise refused(f"{header.source_name}: {key} is of type {type_.name}, expected a whole number", key=key)
    try:
        return entry(key, type_, value)
    except struct.error as e:
        raise refused(f"{header.source_name}: {key} is of type {type_.name}, which cannot hold {value}", key=key) from e


def key_changes(before: Header, after: NewFile) -> tuple[KeyChange, ...]:
    """What becomes of a header's keys: changed and added ones in the order of the new file, then those that go."""
    new = {key.name: key for key in after.keys}
    changed = [key for key in after.keys if key.name not in before.keys or before.keys[key.name].raw != key.raw]
    gone = [key for name, key in before.keys.items() if name not in new]
    return (
        *(
            KeyChange(key=key.name, type=key.type_name, before=_shown(before.keys.get(key.name)), after=_shown(key))
            for key in changed
        ),
        *(KeyChange(key=key.name, type=key.type_name, before=_shown(key), after=None) for key in gone),
    )


def _new_file(
    header: Header, name: str, edits: Mapping[str, KeyValue | None], tensors: tuple[NewTensor, ...]
) -> NewFile:
    keys = [edits.get(key, old) for key, old in header.keys.items() if not key.startswith(GRAFT_PREFIX)]
    keys += [new for key, new in edits.items() if key not in header.keys or key.startswith(GRAFT_PREFIX)]
    return padded(NewFile(name, header.version, header.alignment, tuple(k for k in keys if k is not None), tensors))


def _extra_shard(
    first: Header, name: str, split: Mapping[str, KeyValue | None], tensors: tuple[NewTensor, ...]
) -> NewFile:
    # Every file has its own alignment; all else is said in the first.
    alignment = (first.keys[_ALIGNMENT],) if first.alignment != DEFAULT_ALIGNMENT else ()
    keys = (*alignment, *(key for key in split.values() if key is not None))
    return padded(NewFile(name, first.version, first.alignment, keys, tensors))


def _split_edits(header: Header, first: Header, number: int, count: int, tensors: int) -> dict[str, KeyValue | None]:
    values = {SPLIT_NUMBER: number, SPLIT_COUNT: count, SPLIT_TENSORS: tensors}
    return {
        key: with_integer(header if key in header.keys else first, key, value, default=_SPLIT_TYPES[key])
        for key, value in values.items()
    }


def _check_single_name(name: str) -> None:
    if len(shard_names(name)) > 1:
        raise SlipstreamError(
            Code.CONFLICT, f"the result is one file, but {name!r} is the name of one of several shards"
        )


def _stem(name: str, count: int) -> str:
    names = shard_names(name)
    if len(names) not in (1, count):
        raise SlipstreamError(
            Code.CONFLICT, f"the result has {count} shards, but {name!r} is the name of one of {len(names)}"
        )
    return shard_stem(name)


def _shown(key: KeyValue | None) -> str | None:
    if key is None:
        return None
    value = key.value
    if isinstance(value, Array):
        if value.count > _MOST_SHOWN_VALUES:
            return f"{value.count} values"
        inner = (f"{v.count} values" if isinstance(v, Array) else str(v) for v in value.values())
        text = f"[{', '.join(inner)}]"
    else:
        text = str(value)
        if key.name == PADDING_KEY:
            return f"{len(text)} characters of no meaning"
    more = len(text) - _MOST_SHOWN_CHARACTERS
    return text if more <= 0 else f"{text[:_MOST_SHOWN_CHARACTERS]}… ({len(text)} characters)"
