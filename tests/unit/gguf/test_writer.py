"""Headers we write, read by our reader, by gguf-py, and compared with bytes made another way."""

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.gguf.copying import PIECE_BYTES, CopyRange
from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.reader import read_file, read_header
from orchestrator.gguf.types import TensorType, ValueType
from orchestrator.gguf.writer import (
    PADDING_KEY,
    Blueprint,
    NewFile,
    NewTensor,
    array,
    elements_of,
    entry,
    lay_out,
    padded,
    tensor_of,
)
from tests.support import gguf_bytes
from tests.support.gguf_bytes import Items
from tests.support.gguf_strategies import keys, values
from tests.support.tensors import keys_of

ALIGNMENTS = st.sampled_from([1, 8, 16, 32, 64, 4096, 8192])
F32 = TensorType.F32
SOURCE = Path("source.gguf")


class Bytes:
    """A source whose first bytes are in memory, and the others zero."""

    name = "memory.gguf"

    def __init__(self, data: bytes, size_bytes: int) -> None:
        self.data = data
        self.size_bytes = size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length].ljust(length, b"\0")


def header_of(data: bytes) -> Header:
    return read_header(Bytes(data, len(data)))


def as_written(type_: ValueType, value: Any) -> Any:
    """What `entry` takes for a value of the strategies: arrays as our Array."""
    if not isinstance(value, Items):
        return value
    elements = [gguf_bytes.encoded(value.type, v) for v in value.values]
    return array(value.type, elements)


def read_back(layout: Blueprint) -> Header:
    return read_header(Bytes(layout.header, layout.size_bytes))


def new_file(*tensors: NewTensor, alignment: int = 32, **more: Any) -> NewFile:
    found = [entry("general.alignment", ValueType.UINT32, alignment)] if alignment != 32 else []
    return NewFile("new.gguf", 3, alignment, (*found, *more.get("keys", ())), tensors)


@settings(deadline=None)
@given(values())
def test_an_entry_has_the_bytes_of_the_format(value: tuple[ValueType, Any]) -> None:
    written = entry("some.key", value[0], as_written(*value))
    assert bytes(written.raw) == gguf_bytes.entry("some.key", value)
    assert header_of(gguf_bytes.gguf({"some.key": value})).keys["some.key"].raw == written.raw


@pytest.mark.parametrize(
    ("type_", "value"), [(ValueType.UINT8, 256), (ValueType.UINT32, -1), (ValueType.INT16, 1 << 15)]
)
def test_a_value_that_does_not_fit_is_an_error(type_: ValueType, value: int) -> None:
    with pytest.raises(struct.error):
        entry("some.key", type_, value)


@settings(deadline=None)
@given(values().filter(lambda v: v[0] is ValueType.ARRAY))
def test_elements_put_together_again_are_the_array(value: tuple[ValueType, Any]) -> None:
    given_array = header_of(gguf_bytes.gguf({"some.key": value})).array("some.key")
    assert isinstance(given_array, Array)
    elements = elements_of(given_array)
    assert len(elements) == given_array.count
    assert bytes(array(given_array.type, elements).raw) == bytes(given_array.raw)


@settings(deadline=None)
@given(keys(), st.lists(st.integers(1, 300), max_size=4), ALIGNMENTS, st.sampled_from([2, 3]))
def test_a_copy_of_a_file_is_that_file(kv: dict[str, Any], sizes: list[int], alignment: int, version: int) -> None:
    tensors = {f"t{i}": ((size,), F32) for i, size in enumerate(sizes)}
    original = gguf_bytes.gguf(kv, tensors, alignment=alignment, version=version)
    header = header_of(original)
    copies = tuple(tensor_of(SOURCE, header, info) for info in header.tensors.values())
    layout = lay_out(NewFile("x", header.version, header.alignment, tuple(header.keys.values()), copies))
    assert layout.header == original[: header.data_offset]
    if not sizes:
        return
    whole = CopyRange(SOURCE, header.data_offset, header.data_offset, len(original) - header.data_offset)
    assert layout.ranges == (whole,), "what lies together stays together"
    assert layout.size_bytes % alignment == header.data_offset % alignment == 0


@settings(deadline=None)
@given(
    st.integers(0, 1 << 40),
    st.integers(1 << 18, 1 << 30),
    st.integers(0, 70_000),
    st.sampled_from([16, 32, 64, 4096, 1 << 16, 1 << 17]),
)
def test_padding_lets_blocks_be_shared(at: int, count: int, text: int, alignment: int) -> None:
    """Whatever stands before it, the longest range lies within a block as it did in its source."""
    at = at // alignment * alignment
    tensors = [
        NewTensor("big", (count,), F32, SOURCE, at),
        NewTensor("small", (1,), F32, Path("other.gguf"), 64),
    ]
    file = new_file(*tensors, alignment=alignment, keys=[entry("some.text", ValueType.STRING, "x" * text)])
    layout = lay_out(padded(file))
    big = next(r for r in layout.ranges if r.source == SOURCE)
    assert (big.target_offset - big.source_offset) % PIECE_BYTES == 0
    header = read_back(layout)
    assert big.target_offset == header.data_offset and header.data_offset % alignment == 0
    padding = header.keys.get(PADDING_KEY)
    without = lay_out(file)
    assert len(layout.header) - len(without.header) <= PIECE_BYTES + 64
    if padding is None:
        assert layout.header == without.header
    else:
        assert list(header.keys)[-1] == PADDING_KEY, "it stands last"


def test_a_source_that_is_aligned_otherwise_is_not_padded_for() -> None:
    file = new_file(NewTensor("big", (1 << 20,), F32, SOURCE, 16), alignment=32)
    assert padded(file) is file


def test_little_is_not_padded_for() -> None:
    little, enough = (new_file(NewTensor("big", (count,), F32, SOURCE, 4096)) for count in ((1 << 18) - 1, 1 << 18))
    assert padded(little) is little
    assert PADDING_KEY in read_back(lay_out(padded(enough))).keys


def test_ranges_of_other_files_or_gaps_are_not_merged() -> None:
    tensors = [
        NewTensor("a", (8,), F32, SOURCE, 64),
        NewTensor("b", (8,), F32, SOURCE, 96),
        NewTensor("c", (8,), F32, Path("other"), 128),
        NewTensor("d", (8,), F32, Path("other"), 256),
    ]
    layout = lay_out(new_file(*tensors))
    start = len(layout.header)
    assert layout.ranges == (
        CopyRange(SOURCE, 64, start, 64),
        CopyRange(Path("other"), 128, start + 64, 32),
        CopyRange(Path("other"), 256, start + 96, 32),
    )


def test_padding_between_tensors_goes_along() -> None:
    tensors = [NewTensor("a", (3,), F32, SOURCE, 64), NewTensor("b", (8,), F32, SOURCE, 96)]
    layout = lay_out(new_file(*tensors))
    assert layout.ranges == (CopyRange(SOURCE, 64, len(layout.header), 64),)


@settings(max_examples=25, deadline=None)
@given(keys())
def test_gguf_py_reads_what_we_write(tmp_path_factory: pytest.TempPathFactory, kv: dict[str, Any]) -> None:
    # gguf-py does not decode arrays of arrays.
    flat = {k: v for k, v in kv.items() if not _has_nested(v[1])}
    entries = tuple(entry(name, type_, as_written(type_, value)) for name, (type_, value) in flat.items())
    path = tmp_path_factory.mktemp("py") / "x.gguf"
    path.write_bytes(lay_out(new_file(keys=entries)).header)
    assert list(keys_of(path)) == list(flat)
    ours = read_file(path)
    for name, value in keys_of(path).items():
        mine = ours.keys[name].value
        assert (mine.values() if isinstance(mine, Array) else mine) == value


def _has_nested(value: Any) -> bool:
    return isinstance(value, Items) and value.type is ValueType.ARRAY


def test_a_file_without_tensors_ends_with_its_keys() -> None:
    layout = lay_out(new_file(keys=[entry("k", ValueType.BOOL, True)]))
    assert layout.size_bytes == len(layout.header) and layout.ranges == ()
    assert io.BytesIO(layout.header).read(4) == b"GGUF"
