"""The header of a GGUF file: keys and tensor descriptions (format: ggml/include/gguf.h).

A key is kept as the bytes it has in the file and decoded when asked for: what is not changed is written back the same.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.gguf.types import SCALARS, TensorType, ValueType, letter_of

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Value: TypeAlias = "int | float | bool | str | Array"


@dataclass(frozen=True, eq=False)
class Array:
    """An array value. `raw` holds the elements as the file has them, without type and count."""

    type: ValueType
    count: int
    raw: memoryview

    def __len__(self) -> int:
        return self.count

    def values(self) -> list[Any]:
        """The elements, decoded; those of nested arrays are Arrays. Bytes that are no UTF-8 become U+FFFD."""
        if (scalar := SCALARS.get(self.type)) is not None:
            return list(struct.unpack(f"<{self.count}{letter_of(self.type)}", self.raw[: self.count * scalar.size]))
        if self.type is ValueType.STRING:
            return [s.decode(errors="replace") for s in self.strings()]
        return list(self._nested())

    def strings(self) -> Iterator[bytes]:
        """The elements of an array of strings, as bytes."""
        raw, at = self.raw.tobytes(), 0
        for _ in range(self.count):
            end = at + 8 + _U64.unpack_from(raw, at)[0]
            yield raw[at + 8 : end]
            at = end

    def _nested(self) -> Iterator["Array"]:
        at = 0
        for _ in range(self.count):
            element = ValueType(_U32.unpack_from(self.raw, at)[0])
            count = _U64.unpack_from(self.raw, at + 4)[0]
            end = _end_of_elements(self.raw, at + 12, element, count)
            yield Array(element, count, self.raw[at + 12 : end])
            at = end


@dataclass(frozen=True, eq=False)
class KeyValue:
    """A key. `raw` is its whole entry: length of the name, name, type, value."""

    name: str
    type: ValueType
    raw: memoryview

    @property
    def value(self) -> Value:
        """The value, decoded."""
        at = 8 + _U64.unpack_from(self.raw, 0)[0] + 4
        if (scalar := SCALARS.get(self.type)) is not None:
            return scalar.unpack_from(self.raw, at)[0]  # type: ignore[no-any-return]
        if self.type is ValueType.STRING:
            return self.raw[at + 8 :].tobytes().decode(errors="replace")
        return Array(ValueType(_U32.unpack_from(self.raw, at)[0]), self._count, self.raw[at + 12 :])

    @property
    def type_name(self) -> str:
        """`UINT32`, or `ARRAY[INT32]` for an array."""
        value = self.value if self.type is ValueType.ARRAY else None
        return f"ARRAY[{value.type.name}]" if isinstance(value, Array) else self.type.name

    @property
    def _count(self) -> int:
        at = 8 + _U64.unpack_from(self.raw, 0)[0] + 4
        return int(_U64.unpack_from(self.raw, at + 4)[0])


@dataclass(frozen=True)
class TensorInfo:
    """Description of a tensor. `shape` has the fastest dimension first; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its data, without padding."""
        return self.type.size_of(self.shape)


@dataclass(frozen=True, eq=False)
class Header:
    """Everything before the tensor data. `keys` and `tensors` are in the order of the file."""

    source_name: str
    version: int
    alignment: int
    keys: dict[str, KeyValue] = field(repr=False)
    tensors: dict[str, TensorInfo] = field(repr=False)
    header_bytes: int
    data_offset: int
    file_bytes: int

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` where there is none."""
        found = self.keys.get(key)
        return default if found is None else found.value

    def integer(self, key: str) -> int | None:
        """The value of a key that holds one whole number; None where there is none or it holds something else."""
        found = self.keys.get(key)
        return int(self.value(key)) if found is not None and found.type.is_integer else None

    def text(self, key: str) -> str | None:
        """The value of a key that holds a string; None where there is none or it holds something else."""
        found = self.keys.get(key)
        return str(found.value) if found is not None and found.type is ValueType.STRING else None

    def array(self, key: str) -> Array | None:
        """The value of a key that holds an array; None where there is none or it holds something else."""
        value = self.value(key)
        return value if isinstance(value, Array) else None

    @property
    def architecture(self) -> str:
        """`general.architecture`; empty where the file does not say."""
        return self.text("general.architecture") or ""

    def arch_key(self, name: str) -> str:
        """`<architecture>.<name>`."""
        return f"{self.architecture}.{name}"


def _end_of_elements(raw: memoryview, at: int, type_: ValueType, count: int) -> int:
    """Where the elements of an array end that has been walked over before."""
    if (scalar := SCALARS.get(type_)) is not None:
        return at + count * scalar.size
    for _ in range(count):
        if type_ is ValueType.STRING:
            at += 8 + _U64.unpack_from(raw, at)[0]
        else:
            inner, inner_count = ValueType(_U32.unpack_from(raw, at)[0]), _U64.unpack_from(raw, at + 4)[0]
            at = _end_of_elements(raw, at + 12, inner, inner_count)
    return at
