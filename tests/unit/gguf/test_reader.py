"""The reader takes well-formed headers, refuses damaged ones with their place, and reads no more than it must."""

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.header import Array
from orchestrator.gguf.reader import MAX_HEADER_BYTES, MAX_KEYS, MAX_NESTED_ARRAYS, MAX_TENSORS, read_file, read_header
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items, description, elements, entry, gguf, header_of, string

F32 = TensorType.F32
EVERY_TYPE: dict[str, Any] = {
    "a.uint8": (ValueType.UINT8, 255),
    "a.int8": (ValueType.INT8, -128),
    "a.uint16": (ValueType.UINT16, 65535),
    "a.int16": (ValueType.INT16, -32768),
    "a.uint32": (ValueType.UINT32, 2**32 - 1),
    "a.int32": (ValueType.INT32, -(2**31)),
    "a.float32": (ValueType.FLOAT32, 0.5),
    "a.true": True,
    "a.false": False,
    "a.string": "Grüße",
    "a.empty-string": "",
    "a.uint64": (ValueType.UINT64, 2**64 - 1),
    "a.int64": (ValueType.INT64, -(2**63)),
    "a.float64": (ValueType.FLOAT64, 1e300),
    "b.strings": Items(ValueType.STRING, ["", "a", "ß"]),
    "b.no-strings": Items(ValueType.STRING, []),
    "b.bytes": Items(ValueType.UINT8, range(256)),
    "b.nothing": Items(ValueType.INT32, []),
    "b.bools": Items(ValueType.BOOL, [True, False]),
    "b.doubles": Items(ValueType.FLOAT64, [0.1, -0.0]),
    "b.longs": Items(ValueType.UINT64, [0, 2**64 - 1]),
    "b.nested": Items(
        ValueType.ARRAY,
        [Items(ValueType.INT16, [1, -1]), Items(ValueType.STRING, ["x", ""]), Items(ValueType.ARRAY, [])],
    ),
}


class Bytes:
    """A ByteSource over bytes that tells how much of it was read; `size_bytes` may claim more than there is."""

    name = "some.gguf"

    def __init__(self, content: bytes, size_bytes: int | None = None) -> None:
        self.content = content
        self.size_bytes = len(content) if size_bytes is None else size_bytes
        self.read_bytes = 0

    def read_at(self, offset: int, length: int) -> bytes:
        assert offset + length <= self.size_bytes, "a read beyond the end"
        self.read_bytes += length
        return self.content[offset : offset + length].ljust(length, b"\0")


def plain(value: Any) -> Any:
    if isinstance(value, Array):
        return [plain(v) for v in value.values()]
    return [plain(v) for v in value.values] if isinstance(value, Items) else value


def refusal(content: bytes, size_bytes: int | None = None) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        read_header(Bytes(content, size_bytes))
    assert caught.value.code is Code.INVALID_GGUF
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096])
def test_every_value_type_is_read_and_kept_byte_for_byte(version: int, alignment: int) -> None:
    keys = {"general.architecture": "llama", **EVERY_TYPE}
    content = gguf(keys, {"a": ((4, 2), F32), "b": ((32,), TensorType.Q8_0)}, alignment=alignment, version=version)
    header = read_header(Bytes(content))
    for name, given in keys.items():
        value = given[1] if isinstance(given, tuple) else given
        assert plain(header.value(name)) == plain(value), name
        assert bytes(header.keys[name].raw) == entry(name, given)
    assert list(header.keys)[: len(keys)] == list(keys)
    assert (header.version, header.alignment, header.architecture) == (version, alignment, "llama")
    assert header.data_offset % alignment == 0 and header.data_offset - header.header_bytes < alignment
    assert content[header.data_offset] == 1
    assert [(t.name, t.shape, t.type, t.size_bytes) for t in header.tensors.values()] == [
        ("a", (4, 2), F32, 32),
        ("b", (32,), TensorType.Q8_0, 34),
    ]
    assert header.tensors["b"].offset == max(32, alignment)


def test_values_are_asked_for_by_their_kind() -> None:
    header = read_header(Bytes(gguf({"general.architecture": "x", "x.n": 3, "x.f": 1.5, "x.b": True, **EVERY_TYPE})))
    assert header.integer("x.n") == 3 and header.integer(header.arch_key("n")) == 3
    assert [header.integer(k) for k in ("x.f", "x.b", "a.string", "b.bytes", "absent")] == [None] * 5
    assert header.text("a.string") == "Grüße" and header.text("x.n") is None
    assert header.array("x.n") is None and len(header.array("b.bytes") or []) == 256
    assert header.value("absent", 7) == 7
    assert [header.keys[k].type_name for k in ("x.n", "b.doubles")] == ["UINT32", "ARRAY[FLOAT64]"]


def test_text_that_is_no_utf8_does_not_stop_the_reader() -> None:
    header = read_header(Bytes(gguf({"t": b"a\xff", "l": Items(ValueType.STRING, [b"\x80", b"ok"])})))
    assert header.text("t") == "a\N{REPLACEMENT CHARACTER}"
    assert plain(header.value("l")) == ["\N{REPLACEMENT CHARACTER}", "ok"]
    assert [bytes(s) for s in (header.array("l") or Array(ValueType.STRING, 0, memoryview(b""))).strings()] == [
        b"\x80",
        b"ok",
    ]


def test_an_empty_file_and_one_without_tensors_are_whole() -> None:
    header = read_header(Bytes(gguf({})))
    assert (header.keys, header.tensors, header.data_offset, header.architecture) == ({}, {}, 24, "")
    assert read_header(Bytes(gguf({"a": 1}, alignment=64))).data_offset == len(gguf({"a": 1}, alignment=64))


def test_a_tensor_of_no_dimensions_is_a_number() -> None:
    header = read_header(Bytes(gguf({}, {"scale": ((), F32), "t": ((4,), F32)})))
    assert header.tensors["scale"].shape == () and header.tensors["scale"].size_bytes == 4
    assert header.tensors["t"].offset == 32


def test_no_more_is_read_than_the_header_needs() -> None:
    small = gguf({"general.architecture": "llama"}, {"t": ((1 << 20,), F32)})
    source = Bytes(small)
    read_header(source)
    assert source.read_bytes <= 1 << 20
    large = gguf({"tokens": Items(ValueType.STRING, ["token"] * 500_000)}, {"t": ((1 << 24,), F32)})
    source = Bytes(large)
    header = read_header(source)
    assert header.header_bytes > 6_000_000
    assert source.read_bytes <= 2 * header.header_bytes


HEAD = b"GGUF" + struct.pack("<I", 3)


def counts(tensors: int, keys: int) -> bytes:
    return HEAD + struct.pack("<QQ", tensors, keys)


def with_tensor(
    name: str | bytes, shape: tuple[int, ...], type_: int, offset: int = 0, n_dims: int | None = None
) -> bytes:
    raw = bytearray(counts(1, 0) + description(name, shape, type_, offset))
    if n_dims is not None:
        at = 24 + len(string(name))
        raw[at : at + 4] = struct.pack("<I", n_dims)
    return bytes(raw) + bytes(4096)


LONG = 2**63
DAMAGED: list[tuple[str, bytes, str, dict[str, Any]]] = [
    ("empty", b"", "0 bytes long", {"offset": 0}),
    ("short", b"GGUF" + bytes(19), "23 bytes long", {"offset": 0}),
    ("html", b"<!DOCTYPE html><html>...", "begins with b'<!DO'", {"offset": 0}),
    ("version 1", b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1, expected 2 or 3", {"offset": 4}),
    ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648", {"offset": 4}),
    ("many tensors", counts(MAX_TENSORS + 1, 0), f"{MAX_TENSORS + 1} tensors", {"offset": 8}),
    ("tensors 2^63", counts(LONG, 0), f"{LONG} tensors", {"offset": 8}),
    ("many keys", counts(0, MAX_KEYS + 1), f"{MAX_KEYS + 1} keys", {"offset": 8}),
    ("keys 2^64-1", counts(0, 2**64 - 1), "18446744073709551615 keys", {"offset": 8}),
    ("key missing", counts(0, 1), "ends at byte 32", {"offset": 24, "key": "number 1 of 1"}),
    ("key name 1 GiB", counts(0, 1) + struct.pack("<Q", 1 << 30), "1073741824 bytes", {"offset": 24}),
    ("key name no UTF-8", counts(0, 1) + entry(b"\xff", 1), "no UTF-8", {"offset": 32}),
    ("key name empty", counts(0, 1) + entry("", 1), "is empty", {"offset": 24}),
    ("key twice", counts(0, 2) + entry("a", 1) + entry("a", 2), "stands twice", {"offset": 41, "key": "a"}),
    (
        "value type 13",
        counts(0, 1) + string("a") + struct.pack("<II", 13, 0),
        "value type 13",
        {"offset": 33, "key": "a"},
    ),
    (
        "string 1 GiB",
        counts(0, 1) + string("a") + struct.pack("<IQ", ValueType.STRING, 1 << 30),
        "a string ends at byte",
        {"offset": 45, "key": "a"},
    ),
    (
        "string 2^64-1",
        counts(0, 1) + string("a") + struct.pack("<IQ", ValueType.STRING, 2**64 - 1),
        "a string ends at byte 18446744073709551660",
        {"offset": 45, "key": "a"},
    ),
    (
        "array 2^63",
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.UINT8, LONG),
        f"an array of {LONG} elements",
        {"offset": 49, "key": "a"},
    ),
    (
        "strings 2^60",
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, 1 << 60),
        f"an array of {1 << 60} strings cannot fit",
        {"offset": 49, "key": "a"},
    ),
    (
        "string in an array too long",
        counts(0, 1)
        + string("a")
        + struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, 3)
        + string("ok")
        + struct.pack("<Q", LONG)
        + bytes(64),
        f"string 1 of an array of 3 has {LONG} bytes",
        {"offset": 59, "key": "a"},
    ),
    (
        "last string too long",
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, 1) + struct.pack("<Q", 9),
        "string 0 of an array of 1 has 9 bytes",
        {"offset": 49, "key": "a"},
    ),
    (
        "arrays 2^40",
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.ARRAY, 1 << 40),
        "cannot fit",
        {"offset": 49, "key": "a"},
    ),
    (
        "arrays in arrays in arrays",
        counts(0, 1)
        + string("a")
        + struct.pack("<I", ValueType.ARRAY)
        + struct.pack("<IQ", ValueType.ARRAY, 1) * 9
        + bytes(64),
        "nested more than 4 deep",
        {"offset": 85, "key": "a"},
    ),
    (
        "many empty arrays",
        counts(0, 1)
        + string("a")
        + struct.pack("<IIQ", ValueType.ARRAY, ValueType.ARRAY, MAX_NESTED_ARRAYS + 1)
        + bytes(12 * (MAX_NESTED_ARRAYS + 1)),
        f"{MAX_NESTED_ARRAYS + 1} arrays within arrays",
        {"offset": 49, "key": "a"},
    ),
    ("alignment 0", gguf({"general.alignment": 0}), "is 0, expected a power of two", {"key": "general.alignment"}),
    ("alignment 24", gguf({"general.alignment": 24}), "is 24, expected a power", {"key": "general.alignment"}),
    (
        "alignment UINT64",
        gguf({"general.alignment": (ValueType.UINT64, 32)}),
        "of type UINT64, expected UINT32",
        {"key": "general.alignment"},
    ),
    ("tensor missing", counts(1, 0), "1 tensors cannot fit into the 0 bytes", {"offset": 24}),
    ("tensor name long", with_tensor("n" * 64, (4,), 0), "64 bytes, expected 63 at most", {"offset": 24}),
    ("5 dimensions", with_tensor("t", (1,) * 5, 0), "5 dimensions, expected 4 at most", {"offset": 33, "tensor": "t"}),
    ("a block of nothing", with_tensor("t", (), TensorType.Q8_0), "rows of 1 values", {"offset": 37, "tensor": "t"}),
    (
        "a million dimensions",
        with_tensor("t", (4,), 0, n_dims=10**6),
        "1000000 dimensions",
        {"offset": 33, "tensor": "t"},
    ),
    ("dimension 0", with_tensor("t", (4, 0), 0), "0 elements", {"offset": 37, "tensor": "t"}),
    ("too many elements", with_tensor("t", (2**32, 2**31), 0), f"{LONG} elements", {"offset": 37, "tensor": "t"}),
    ("dimension 2^64-1", with_tensor("t", (2**64 - 1,), 0), "elements, expected 1", {"offset": 37, "tensor": "t"}),
    ("tensor type 4", with_tensor("t", (4,), 4), "tensor type 4 is not known", {"offset": 45, "tensor": "t"}),
    ("tensor type 2^32-1", with_tensor("t", (4,), 2**32 - 1), "is not known", {"offset": 45, "tensor": "t"}),
    (
        "half a block",
        with_tensor("t", (33,), TensorType.Q8_0),
        "33 values are no whole blocks of Q8_0",
        {"tensor": "t"},
    ),
    ("a gap", with_tensor("t", (4,), 0, offset=32), "begins at 32, expected 0", {"tensor": "t"}),
    ("offset 2^64-1", with_tensor("t", (4,), 0, offset=2**64 - 1), "expected 0", {"tensor": "t"}),
    ("data cut off", gguf({}, {"t": ((1024,), F32)})[:-1], "it is cut off", {"tensor": "t"}),
    (
        "tensor twice",
        counts(2, 0) + description("t", (4,), 0, 0) + description("t", (4,), 0, 32) + bytes(99),
        "stands twice",
        {"offset": 57, "tensor": "t"},
    ),
]


@pytest.mark.parametrize(("content", "message", "details"), [d[1:] for d in DAMAGED], ids=[d[0] for d in DAMAGED])
def test_damage_is_refused_with_its_place(content: bytes, message: str, details: dict[str, Any]) -> None:
    error = refusal(content)
    assert message in error.message
    assert error.message.startswith("some.gguf: byte ")
    assert details.items() <= error.details.items()
    assert f"byte {error.details['offset']}" in error.message


@pytest.mark.parametrize("cut", range(0, len(header_of({"a": 1, **EVERY_TYPE}, {"t": ((4,), F32)})[0]), 7))
def test_every_cut_is_refused(cut: int) -> None:
    whole = gguf({"a": 1, **EVERY_TYPE}, {"t": ((4,), F32)})
    error = refusal(whole[:cut])
    assert 0 <= error.details["offset"] <= cut


@pytest.mark.parametrize(
    "content",
    [
        counts(MAX_TENSORS, 0),
        counts(0, MAX_KEYS),
        counts(0, 1) + string("a") + struct.pack("<IQ", ValueType.STRING, 1 << 30),
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, 1 << 40),
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.ARRAY, 1 << 40),
        counts(0, 1) + string("a") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.FLOAT64, 1 << 40),
        with_tensor("t", (4,), 0, n_dims=10**6),
    ],
    ids=["tensors", "keys", "string", "strings", "arrays", "numbers", "dimensions"],
)
def test_what_a_large_file_claims_costs_no_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        refusal(content, size_bytes=1 << 40)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_a_header_beyond_the_limit_is_refused_before_it_is_read() -> None:
    content = counts(0, 1) + string("a") + struct.pack("<IQ", ValueType.STRING, MAX_HEADER_BYTES)
    source = Bytes(content, size_bytes=1 << 40)
    with pytest.raises(SlipstreamError, match="the largest header read here"):
        read_header(source)
    assert source.read_bytes <= 1 << 20


def test_a_large_array_is_not_decoded_to_be_read() -> None:
    tokens = gguf({"tokens": Items(ValueType.STRING, ["token"] * 200_000)})
    tracemalloc.start()
    try:
        header = read_header(Bytes(tokens))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(header.array("tokens") or []) == 200_000
    assert kept < 3 * len(tokens) and peak < 4 * len(tokens)


def test_files_are_read_and_their_absence_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(SlipstreamError, match=r"there is no file 'model\.gguf'") as caught:
        read_file(path)
    assert caught.value.code is Code.NOT_FOUND
    path.write_bytes(gguf({"general.architecture": "llama"}))
    header = read_file(path)
    assert (header.source_name, header.file_bytes) == ("model.gguf", path.stat().st_size)
    with pytest.raises(SlipstreamError, match="cannot be read") as caught:
        read_file(tmp_path)
    assert str(tmp_path) not in caught.value.message


def test_a_pipe_and_a_folder_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", tmp_path):
        with pytest.raises(SlipstreamError) as caught:
            read_file(path)
        assert caught.value.code is Code.INVALID_GGUF


def test_the_elements_helper_agrees_with_the_reader() -> None:
    raw = elements(ValueType.INT32, [1, 2])
    assert Array(ValueType.INT32, 2, memoryview(raw)).values() == [1, 2]
