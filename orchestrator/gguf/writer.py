"""Headers of new GGUF files (format: ggml/include/gguf.h), and which bytes of which files belong behind them.

Keys that stay are written as the bytes they were read as. Tensor data is never touched: a new file is a header and
a list of ranges to copy.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.gguf.copying import PIECE_BYTES, CopyRange
from orchestrator.gguf.header import Array, Header, KeyValue, TensorInfo
from orchestrator.gguf.types import SCALARS, TensorType, ValueType

# A string of no meaning, as long as it takes for the data to lie within a piece as it did in the file it comes from.
PADDING_KEY = "slipstream.graft.padding"
_PADDING = "."
# Less is not worth padding that may be as long as a piece.
_LEAST_PADDED_BYTES = 16 * PIECE_BYTES
_START = struct.Struct("<4sIQQ")


@dataclass(frozen=True)
class NewTensor:
    """A tensor of a new file. `offset` is where its bytes are in `source`, from the start of that file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    source: Path
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its data, without padding."""
        return self.type.size_of(self.shape)


@dataclass(frozen=True, eq=False)
class NewFile:
    """A file to be written: keys and tensors in the order they will have."""

    name: str
    version: int
    alignment: int
    keys: tuple[KeyValue, ...]
    tensors: tuple[NewTensor, ...]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A file laid out byte for byte; what no range covers is zero."""

    name: str
    header: bytes
    ranges: tuple[CopyRange, ...]
    size_bytes: int


def entry(name: str, type_: ValueType, value: Any) -> KeyValue:
    """A key as its bytes. An array is given as an `Array`; struct.error or OverflowError for a value that the type
    does not hold."""
    encoded = name.encode()
    raw = struct.pack("<Q", len(encoded)) + encoded + struct.pack("<I", type_) + _encoded(type_, value)
    return KeyValue(name, type_, memoryview(raw))


def array(type_: ValueType, elements: Sequence[bytes | memoryview]) -> Array:
    """An array of elements as bytes."""
    return Array(type_, len(elements), memoryview(b"".join(elements)))


def elements_of(given: Array) -> list[memoryview]:
    """The bytes of each element of an array."""
    if (scalar := SCALARS.get(given.type)) is not None:
        return [given.raw[i : i + scalar.size] for i in range(0, given.count * scalar.size, scalar.size)]
    if given.type is ValueType.STRING:
        return [memoryview(struct.pack("<Q", len(s)) + s) for s in given.strings()]
    return [memoryview(_encoded(ValueType.ARRAY, inner)) for inner in given.values()]


def tensor_of(path: Path, header: Header, info: TensorInfo, name: str | None = None) -> NewTensor:
    """A tensor of a file as one of a new file, with another name if one is given."""
    return NewTensor(name or info.name, info.shape, info.type, path, header.data_offset + info.offset)


def padded(file: NewFile) -> NewFile:
    """The file, with a padding key as its last where blocks could not be shared without it."""
    header, ranges, _ = _placed(file)
    padding = _padding(file, len(header), ranges)
    return file if padding is None else replace(file, keys=(*file.keys, padding))


def lay_out(file: NewFile) -> Blueprint:
    """Where everything goes."""
    return Blueprint(file.name, *_placed(file))


def verbatim(path: Path, name: str) -> Blueprint:
    """A copy of a file under another name."""
    size = path.stat().st_size
    return Blueprint(name, b"", (CopyRange(path, 0, 0, size),), size)


def _encoded(type_: ValueType, value: Any) -> bytes:
    if type_ is ValueType.STRING:
        raw = str(value).encode()
        return struct.pack("<Q", len(raw)) + raw
    if type_ is ValueType.ARRAY:
        return struct.pack("<IQ", value.type, value.count) + bytes(value.raw)
    return SCALARS[type_].pack(value)


def _placed(file: NewFile) -> tuple[bytes, tuple[CopyRange, ...], int]:
    """Header with the padding behind it, ranges in the order of the file, bytes of the whole file."""
    parts: list[bytes | memoryview] = [_START.pack(b"GGUF", file.version, len(file.tensors), len(file.keys))]
    parts += [key.raw for key in file.keys]
    offset = 0
    offsets: list[int] = []
    for tensor in file.tensors:
        name, dims = tensor.name.encode(), len(tensor.shape)
        parts.append(struct.pack("<Q", len(name)) + name)
        parts.append(struct.pack(f"<I{dims}QIQ", dims, *tensor.shape, tensor.type, offset))
        offsets.append(offset)
        offset = _aligned(offset + tensor.size_bytes, file.alignment)
    header = b"".join(parts)
    if not file.tensors:
        return header, (), len(header)
    header += bytes(_aligned(len(header), file.alignment) - len(header))
    return header, _merged(file, [len(header) + o for o in offsets]), len(header) + offset


def _merged(file: NewFile, targets: list[int]) -> tuple[CopyRange, ...]:
    """One range for tensors that lie behind one another, alike, in source and target; the padding between them goes
    along."""
    ranges: list[CopyRange] = []
    for tensor, target in zip(file.tensors, targets, strict=True):
        if ranges:
            last = ranges[-1]
            gap = target - last.target_offset - last.length
            follows = tensor.source == last.source and tensor.offset == last.source_offset + last.length + gap
            if follows and gap < file.alignment:
                ranges[-1] = replace(last, length=last.length + gap + tensor.size_bytes)
                continue
        ranges.append(CopyRange(tensor.source, tensor.offset, target, tensor.size_bytes))
    return tuple(ranges)


def _padding(file: NewFile, data_offset: int, ranges: tuple[CopyRange, ...]) -> KeyValue | None:
    """The key that moves the longest range of the first source to where its blocks can be shared; None where they can
    be already, or never, or where it is short."""
    if not ranges:
        return None
    longest = max((r for r in ranges if r.source == ranges[0].source), key=lambda r: r.length)
    shift = (longest.source_offset - longest.target_offset) % PIECE_BYTES
    if longest.length < _LEAST_PADDED_BYTES or shift == 0 or shift % min(file.alignment, PIECE_BYTES):
        return None
    # Header and padding key end where the data begins: alignment adds nothing to a multiple of itself.
    unpadded = _placed(replace(file, keys=(*file.keys, entry(PADDING_KEY, ValueType.STRING, "")), tensors=()))[2]
    unpadded += sum(24 + len(t.name.encode()) + 8 * len(t.shape) for t in file.tensors)
    wanted = data_offset + shift
    while wanted < unpadded:
        wanted += PIECE_BYTES
    return entry(PADDING_KEY, ValueType.STRING, _PADDING * (wanted - unpadded))


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
