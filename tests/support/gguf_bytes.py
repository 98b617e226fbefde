"""GGUF files byte by byte, well-formed or not: what gguf-py cannot write, the tests write with this."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import SCALARS, TensorType, ValueType


@dataclass(frozen=True)
class Items:
    """An array of a key; those of `ValueType.ARRAY` hold Items."""

    type: ValueType
    values: Sequence[Any]


# A value with its type, or one whose type goes without saying: str, bool, int (UINT32), float (FLOAT32), Items.
Plain = str | bytes | bool | int | float | Items
Keys = Mapping[str, Plain | tuple[ValueType, Any]]
# Name to shape (fastest first) and type.
Tensors = Mapping[str, tuple[Sequence[int], TensorType]]


def gguf(
    keys: Keys, tensors: Tensors | None = None, *, alignment: int = 32, version: int = 3, data: bytes | None = None
) -> bytes:
    """A whole file. The tensors' data is `data`, or else a byte pattern that tells each tensor from the next."""
    header, sizes = header_of(keys, tensors or {}, alignment=alignment, version=version)
    if not tensors:
        return header
    body = bytearray()
    for number, size in enumerate(sizes):
        body += bytes([number % 251 + 1]) * size
        if number < len(sizes) - 1:
            body += bytes(-len(body) % alignment)
    return header + bytes(-len(header) % alignment) + (bytes(body) if data is None else data)


def edited(
    source: Path,
    path: Path,
    *,
    keys: Mapping[str, Plain | tuple[ValueType, Any] | None] | None = None,
    keep: Callable[[str], bool] = lambda name: True,
    names: Callable[[str], Sequence[str]] = lambda name: (name,),
    added: Mapping[str, tuple[Sequence[int], TensorType, bytes]] | None = None,
) -> Path:
    """A copy of a file with keys changed, added or (None) taken away, and tensors dropped, renamed or added."""
    header = read_file(source)
    content = source.read_bytes()
    changed = dict(keys or {})
    entries = [bytes(kv.raw) for name, kv in header.keys.items() if name not in changed]
    entries += [entry(name, value) for name, value in changed.items() if value is not None]
    tensors = [(n, tensor) for name, tensor in header.tensors.items() if keep(name) for n in names(name)]
    parts: list[tuple[str, Sequence[int], TensorType, bytes]] = []
    for name, tensor in tensors:
        start = header.data_offset + tensor.offset
        parts.append((name, tensor.shape, tensor.type, content[start : start + tensor.size_bytes]))
    parts += [(name, *tensor) for name, tensor in (added or {}).items()]
    out = bytearray(b"GGUF" + struct.pack("<IQQ", header.version, len(parts), len(entries)) + b"".join(entries))
    data = bytearray()
    for name, shape, type_, part in parts:
        data += bytes(-len(data) % header.alignment)
        out += description(name, shape, type_, len(data))
        data += part
    path.write_bytes(out + bytes(-len(out) % header.alignment) + data)
    return path


def header_of(keys: Keys, tensors: Tensors, *, alignment: int = 32, version: int = 3) -> tuple[bytes, list[int]]:
    """Everything before the data, unpadded, and the bytes of each tensor."""
    if alignment != 32:
        keys = {**keys, "general.alignment": (ValueType.UINT32, alignment)}
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)))
    for name, value in keys.items():
        out += entry(name, value)
    offset, sizes = 0, []
    for name, (shape, type_) in tensors.items():
        out += description(name, shape, type_, offset)
        sizes.append(type_.size_of(tuple(shape)))
        offset += -(-sizes[-1] // alignment) * alignment
    return bytes(out), sizes


def entry(name: str | bytes, value: Plain | tuple[ValueType, Any]) -> bytes:
    """One key."""
    type_, plain = value if isinstance(value, tuple) else (_type_of(value), value)
    return string(name) + struct.pack("<I", type_) + encoded(type_, plain)


def description(name: str | bytes, shape: Sequence[int], type_: int, offset: int) -> bytes:
    """The description of one tensor."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_, offset)


def encoded(type_: ValueType, value: Any) -> bytes:
    """A value without its type."""
    if type_ is ValueType.STRING:
        return string(value)
    if type_ is not ValueType.ARRAY:
        return SCALARS[type_].pack(value)
    items: Items = value
    return struct.pack("<IQ", items.type, len(items.values)) + elements(items.type, items.values)


def elements(type_: ValueType, values: Iterable[Any]) -> bytes:
    """The elements of an array."""
    return b"".join(encoded(type_, value) for value in values)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _type_of(value: Plain) -> ValueType:
    if isinstance(value, str | bytes):
        return ValueType.STRING
    if isinstance(value, Items):
        return ValueType.ARRAY
    if isinstance(value, bool):
        return ValueType.BOOL
    return ValueType.UINT32 if isinstance(value, int) else ValueType.FLOAT32
