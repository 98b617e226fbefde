"""Reads the header of a GGUF file, without the tensors and in bounded memory.

What is refused is what llama.cpp's gguf.cpp refuses, and dimensions of zero; arrays of arrays are read, though
llama.cpp does not take them. A vocabulary costs a walk over the lengths of its strings and nothing else.
"""

import struct
from pathlib import Path

from orchestrator.errors import SlipstreamError
from orchestrator.gguf.cursor import Cursor
from orchestrator.gguf.header import Header, KeyValue, TensorInfo
from orchestrator.gguf.source import ByteSource, FileBytes
from orchestrator.gguf.types import DEFAULT_ALIGNMENT, SCALARS, TensorType, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# The largest headers in the field, with vocabularies of 260,000 tokens and merges, have about 20 MB; a copy of the
# original tokenizer.json may double that.
MAX_HEADER_BYTES = 1 << 27
# Far above every real file; each entry costs some hundred bytes of memory.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
# Each is walked over by itself, unlike the elements of an array of numbers.
MAX_NESTED_ARRAYS = 1 << 16
# Of a name in a message; the longest ones in the field have about 60.
_SHOWN_CHARACTERS = 100
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")


def read_file(path: Path) -> Header:
    """The header of a file; SlipstreamError not_found or invalid_gguf."""
    with FileBytes(path) as source:
        return read_header(source)


def read_header(source: ByteSource) -> Header:
    """The header of a GGUF file. SlipstreamError invalid_gguf says what is wrong, where (`offset`) and in which key
    or tensor; memory stays below MAX_HEADER_BYTES whatever the file claims."""
    return _Reader(source).read()


class _Reader(Cursor):
    """Walks over a header once; keys are noted by where they are."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source, MAX_HEADER_BYTES)
        self._nested_arrays = 0

    def read(self) -> Header:
        self._check_magic()
        version = self._u32()
        if version not in VERSIONS:
            raise self._wrong(f"GGUF version {version}, expected 2 or 3; a big-endian file is not supported", back=4)
        self._need(_COUNTS.size)
        n_tensors, n_keys = _COUNTS.unpack_from(self._buffer, self._at)
        for what, count, most in (("tensors", n_tensors, MAX_TENSORS), ("keys", n_keys, MAX_KEYS)):
            if count > most:
                raise self._wrong(f"{count} {what}, expected {most} at most")
        self._at += _COUNTS.size
        places = self._keys(n_keys)
        alignment = self._alignment(places)
        tensors = self._tensors(n_tensors)
        header_bytes = self._at
        data_offset = -(-header_bytes // alignment) * alignment if tensors else header_bytes
        self._check_layout(tensors, alignment, data_offset)
        del self._buffer[header_bytes:]
        whole = memoryview(self._buffer).toreadonly()
        keys = {name: KeyValue(name, type_, whole[start:end]) for name, (type_, start, end) in places.items()}
        source = self._source
        return Header(source.name, version, alignment, keys, tensors, header_bytes, data_offset, source.size_bytes)

    def _check_magic(self) -> None:
        if self._source.size_bytes < 24:
            raise self._wrong(f"{self._source.size_bytes} bytes long, which is too short for a GGUF file")
        self._need(4)
        magic = bytes(self._buffer[:4])
        if magic != MAGIC:
            raise self._wrong(f"not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}")
        self._at = 4

    def _keys(self, count: int) -> dict[str, tuple[ValueType, int, int]]:
        places: dict[str, tuple[ValueType, int, int]] = {}
        for number in range(count):
            start = self._at
            self._what = {"key": f"number {number + 1} of {count}"}
            name = self._string("the name of a key")
            self._what = {"key": name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"}
            if not name or name in places:
                raise self._wrong("the name of a key is empty" if not name else "this key stands twice", at=start)
            type_ = self._value_type()
            self._skip(type_, depth=0)
            places[name] = (type_, start, self._at)
        return places

    def _skip(self, type_: ValueType, depth: int) -> None:
        if type_ is ValueType.STRING:
            self._pass_over(self._u64(), "a string")
        elif type_ is not ValueType.ARRAY:
            self._pass_over(SCALARS[type_].size, "a value")
        else:
            if depth == MAX_ARRAY_DEPTH:
                raise self._wrong(f"arrays are nested more than {MAX_ARRAY_DEPTH} deep")
            element, count = self._value_type(), self._u64()
            if (scalar := SCALARS.get(element)) is not None:
                self._pass_over(count * scalar.size, f"an array of {count} elements")
            elif element is ValueType.STRING:
                self._skip_strings(count)
            else:
                self._skip_arrays(count, depth + 1)

    def _skip_arrays(self, count: int, depth: int) -> None:
        self._check_room(count * 12, f"an array of {count} arrays")
        self._nested_arrays += count
        if self._nested_arrays > MAX_NESTED_ARRAYS:
            raise self._wrong(f"{self._nested_arrays} arrays within arrays, expected {MAX_NESTED_ARRAYS} at most")
        for _ in range(count):
            self._skip(ValueType.ARRAY, depth)

    def _skip_strings(self, count: int) -> None:
        self._check_room(count * 8, f"an array of {count} strings")
        at, limit, filled, unpack = self._at, self._limit, len(self._buffer), _U64.unpack_from
        for number in range(count):
            if at + 8 > filled:
                if at + 8 > limit:
                    raise self._too_long(number, count)
                self._fill(at + 8)
                filled = len(self._buffer)
            at += 8 + unpack(self._buffer, at)[0]
        if at > limit:
            raise self._too_long(count, count)
        self._fill(at)
        self._at = at

    def _too_long(self, walked: int, count: int) -> SlipstreamError:
        """The error for an array of strings, of which the last one that was walked over ends beyond the limit."""
        at = self._at
        for _ in range(walked - 1):
            at += 8 + _U64.unpack_from(self._buffer, at)[0]
        length = _U64.unpack_from(self._buffer, at)[0]
        message = f"string {walked - 1} of an array of {count} has {length} bytes, and ends beyond byte {self._limit}"
        return self._wrong(message, at=at)

    def _alignment(self, places: dict[str, tuple[ValueType, int, int]]) -> int:
        if "general.alignment" not in places:
            return DEFAULT_ALIGNMENT
        type_, _, end = places["general.alignment"]
        self._what = {"key": "general.alignment"}
        if type_ is not ValueType.UINT32:
            raise self._wrong(f"general.alignment is of type {type_.name}, expected UINT32", at=end)
        alignment = int(_U32.unpack_from(self._buffer, end - 4)[0])
        if alignment == 0 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {alignment}, expected a power of two", at=end - 4)
        return alignment

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        self._what = {"tensor": f"number 1 of {count}"} if count else {}
        self._check_room(count * 24, f"the descriptions of {count} tensors")
        for number in range(count):
            start = self._at
            self._what = {"tensor": f"number {number + 1} of {count}"}
            name = self._string("the name of a tensor", MAX_NAME_BYTES)
            self._what = {"tensor": name}
            if name in tensors:
                raise self._wrong("this tensor stands twice", at=start)
            shape = self._shape()
            type_ = self._tensor_type(shape)
            tensors[name] = TensorInfo(name, shape, type_, self._u64())
        return tensors

    def _shape(self) -> tuple[int, ...]:
        n_dims = self._u32()
        # Of 0 dimensions is a number by itself, as converters write a scale.
        if n_dims > MAX_DIMENSIONS:
            raise self._wrong(f"{n_dims} dimensions, expected {MAX_DIMENSIONS} at most", back=4)
        start = self._at
        shape = tuple(self._u64() for _ in range(n_dims))
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements < 1 << 63:
            raise self._wrong(f"the shape {shape} has {elements} elements, expected 1 to 2^63 - 1", at=start)
        return shape

    def _tensor_type(self, shape: tuple[int, ...]) -> TensorType:
        number = self._u32()
        try:
            type_ = TensorType(number)
        except ValueError:
            error = self._wrong(f"tensor type {number} is not known to llama.cpp at the pin", back=4)
            error.details["tensor_type"] = number
            raise error from None
        row = shape[0] if shape else 1
        if row % type_.block_values:
            raise self._wrong(
                f"rows of {row} values are no whole blocks of {type_.name} ({type_.block_values} values)", back=4
            )
        return type_

    def _check_layout(self, tensors: dict[str, TensorInfo], alignment: int, data_offset: int) -> None:
        expected = 0
        for tensor in tensors.values():
            self._what = {"tensor": tensor.name}
            if tensor.offset != expected:
                raise self._wrong(f"the data begins at {tensor.offset}, expected {expected}: no gaps, no overlaps")
            if data_offset + tensor.offset + tensor.size_bytes > self._source.size_bytes:
                raise self._wrong(
                    f"the data ends at byte {data_offset + tensor.offset + tensor.size_bytes}, but the file has "
                    f"{self._source.size_bytes}: it is cut off",
                    at=data_offset + tensor.offset,
                )
            expected += -(-tensor.size_bytes // alignment) * alignment

    def _value_type(self) -> ValueType:
        number = self._u32()
        try:
            return ValueType(number)
        except ValueError:
            raise self._wrong(f"value type {number}, expected 0 to 12", back=4) from None
