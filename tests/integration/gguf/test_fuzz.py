"""Well-formed files are read as written and as gguf-py reads them; damaged ones are refused with their place.

All tests together try 21,600 examples, the same in every run, each within a deadline.
"""

import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.inspect import inspect_file, inspect_header, inspect_model
from orchestrator.gguf.model import open_model
from orchestrator.gguf.preflight import preflight
from orchestrator.gguf.reader import read_file, read_header
from orchestrator.gguf.tokenizer import compare_tokenizers
from orchestrator.gguf.types import SCALARS, TensorType, ValueType
from tests.support import gguf_strategies
from tests.support.gguf_bytes import Items, description, entry, gguf, header_of
from tests.unit.gguf import made
from tests.unit.gguf.test_reader import EVERY_TYPE, Bytes

pytestmark = pytest.mark.integration
ALIGNMENTS = st.sampled_from([16, 32, 64])
# Of Q8_1 gguf-py has another size than ggml (two 16-bit floats a block, ggml/src/ggml-common.h); Q2_0 is younger.
NOT_IN_GGUF_PY = (TensorType.Q8_1, TensorType.Q2_0)
# What the reader looks at before the first key.
PREFIX_BYTES = 24


def examples(number: int) -> settings:
    """So many examples, the same in every run, each of which ends within a deadline."""
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=timedelta(seconds=2),
        suppress_health_check=list(HealthCheck),
    )


def plain(value: Any) -> Any:
    """A value of ours or of the strategies as Python's own, bools apart from numbers."""
    if isinstance(value, Array):
        return [plain(v) for v in value.values()]
    if isinstance(value, Items):
        return [plain(v) for v in value.values]
    return value


def single(value: Any) -> Any:
    """As a 32-bit float has it."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def expected(type_: ValueType, value: Any) -> Any:
    if type_ is ValueType.FLOAT32:
        return single(value)
    if isinstance(value, Items):
        return [expected(value.type, v) for v in value.values]
    return value


def is_nested(value: Any) -> bool:
    return isinstance(value, Items) and value.type is ValueType.ARRAY


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], TensorType]:
    type_ = draw(st.sampled_from(TensorType))
    rest = draw(st.lists(st.integers(1, 3), max_size=3))
    return (type_.block_values * draw(st.integers(1, 2)), *rest), type_


def tensors() -> st.SearchStrategy[dict[str, tuple[tuple[int, ...], TensorType]]]:
    names = st.from_regex(r"blk\.\d\.(attn_q|nextn\.enorm|ffn_up)\.weight", fullmatch=True) | st.text(
        "abc.é", min_size=0, max_size=9
    )
    return st.dictionaries(names, shapes(), max_size=4)


def archs() -> st.SearchStrategy[dict[str, Any]]:
    """Keys that inspect looks at, of whatever type."""
    names = st.sampled_from(
        (
            *("block_count", "nextn_predict_layers", "embedding_length", "context_length", "leading_dense_block_count"),
            *("attention.head_count", "attention.head_count_kv", "attention.sliding_window", "ssm.state_size"),
            *("attention.sliding_window_pattern", "attention.recurrent_layers", "full_attention_interval"),
            "expert_shared_count",
        )
    )
    return st.sampled_from(["llama", "glm4moe", "qwen35", "gemma3", "deepseek4", "step35", "mamba", "eagle3"]).flatmap(
        lambda arch: st.dictionaries(names.map(lambda n: f"{arch}.{n}"), gguf_strategies.values(), max_size=6).map(
            lambda keys: {"general.architecture": arch, **keys}
        )
    )


def as_written(content: bytes, keys: dict[str, Any], infos: dict[str, Any], alignment: int) -> Header:
    header = read_header(Bytes(content))
    assert [name for name in header.keys if name != "general.alignment"] == [*keys]
    for name, value in keys.items():
        type_, given_value = value if isinstance(value, tuple) else (ValueType.STRING, value)
        assert plain(header.value(name)) == expected(type_, given_value), name
        assert header.keys[name].type is type_
        assert bytes(header.keys[name].raw) == entry(name, value)
    assert {name: (t.shape, t.type) for name, t in header.tensors.items()} == infos
    assert list(header.tensors) == list(infos)
    assert header.alignment == alignment
    for number, tensor in enumerate(header.tensors.values()):
        start = header.data_offset + tensor.offset
        assert start % alignment == 0
        assert set(content[start : start + tensor.size_bytes]) == {number % 251 + 1}
    return header


def as_gguf_py(header: Header, path: Path) -> None:
    """gguf-py agrees on all that it can read: it has no arrays of arrays, and not every type of tensor."""
    if any(t.type in NOT_IN_GGUF_PY for t in header.tensors.values()):
        return
    reader = GGUFReader(path)
    names = [name for name in reader.fields if not name.startswith("GGUF.")]
    assert names == list(header.keys)
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        ours = plain(header.value(name))
        theirs = field.contents()
        assert np.array_equal(np.asarray(ours, object), np.asarray(theirs, object)), name
    assert [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.n_bytes), int(t.data_offset))
        for t in reader.tensors
    ] == [(t.name, t.shape, t.type, t.size_bytes, header.data_offset + t.offset) for t in header.tensors.values()]


@examples(3000)
@given(archs(), gguf_strategies.keys(), tensors(), ALIGNMENTS, st.sampled_from([2, 3]))
def test_well_formed_files(
    tmp_path_factory: pytest.TempPathFactory,
    arch: dict[str, Any],
    keys: dict[str, Any],
    infos: dict[str, Any],
    alignment: int,
    version: int,
) -> None:
    keys = {**arch, **keys}
    content = gguf(keys, infos, alignment=alignment, version=version)
    header = as_written(content, keys, infos, alignment)
    inspect_header(header)
    if version == 3 and not any(is_nested(v[1]) for v in keys.values() if isinstance(v, tuple)):
        path = tmp_path_factory.getbasetemp() / "well-formed.gguf"
        path.write_bytes(content)
        as_gguf_py(header, path)


@examples(600)
@given(archs(), st.lists(tensors(), min_size=2, max_size=3), ALIGNMENTS)
def test_split_files(
    tmp_path_factory: pytest.TempPathFactory, arch: dict[str, Any], parts: list[dict[str, Any]], alignment: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    parts = [{f"{number}{name}": info for name, info in part.items()} for number, part in enumerate(parts)]
    paths = [folder / f"split-{n:05d}-of-{len(parts):05d}.gguf" for n in range(1, len(parts) + 1)]
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        split = {"split.no": (ValueType.UINT16, number), "split.count": (ValueType.UINT16, len(parts))}
        path.write_bytes(gguf({**(arch if number == 0 else {}), **split}, part, alignment=alignment))
    model = open_model(paths[-1])
    whole = {name: info for part in parts for name, info in part.items()}
    assert {name: (t.shape, t.type) for name, (_, t) in model.tensors.items()} == whole
    assert inspect_model(model) == inspect_file(paths[0])


def bases() -> list[bytes]:
    """Small models of several kinds, whole by themselves."""
    families = [made.whole(arch) for arch in ("glm4moe", "qwen35", "deepseek4", "qwen4exp", "bailingmoe3")]
    families += [made.whole("step35", heads=2), made.drafter(), (made.keys("llama", 1), {})]
    plain_model = made.keys("gemma3", 2, attention__sliding_window=64), made.around("llama") | made.trunk_of("llama", 2)
    contents = [gguf(*family) for family in [*families, plain_model]]
    return [*contents, gguf(EVERY_TYPE, {"t": ((8,), TensorType.F32)}, alignment=64)]


BASES = bases()
TARGET = read_header(Bytes(BASES[0]))


def reads_or_is_refused(content: bytes) -> Header | None:
    """The header where the reader takes it, after all that looks into headers has; else None."""
    try:
        header = read_header(Bytes(content))
    except SlipstreamError as e:
        assert e.code is Code.INVALID_GGUF, e.message
        offset = e.details["offset"]
        assert 0 <= offset <= len(content) or e.message.endswith("it is cut off")
        assert offset < PREFIX_BYTES or "key" in e.details or "tensor" in e.details, e.message
        assert len(e.message) < 500
        return None
    for key in header.keys.values():
        plain(key.value)
    inspect_header(header)
    compare_tokenizers(TARGET, header, draft_simple=True)
    return header


@examples(6000)
@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7), st.booleans()), min_size=1, max_size=6),
)
def test_flipped_bits(base: bytes, flips: list[tuple[int, int, bool]]) -> None:
    content = bytearray(base)
    for place, bit, is_early in flips:
        content[place % (512 if is_early else len(content))] ^= 1 << bit
    reads_or_is_refused(bytes(content))


@examples(3000)
@given(st.sampled_from(BASES), st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.binary(max_size=32))
def test_cut_and_spliced(base: bytes, start: int, length: int, put: bytes) -> None:
    start %= len(base)
    length %= len(base) - start
    reads_or_is_refused(base[:start] + put + base[start + length :])
    if length:
        assert reads_or_is_refused(base[:start]) is None or start >= TARGET.header_bytes


def places(content: bytes) -> list[tuple[int, int]]:
    """Offset and size of each count, length, type and dimension in a well-formed file."""
    header = read_header(Bytes(content))
    found, at = [(4, 4), (8, 8), (16, 8)], PREFIX_BYTES

    def array(at: int) -> int:
        type_, count = struct.unpack_from("<IQ", content, at)
        found.extend([(at, 4), (at + 4, 8)])
        at += 12
        for _ in range(count):
            at = value(at, ValueType(type_))
        return at

    def value(at: int, type_: ValueType) -> int:
        if type_ is ValueType.ARRAY:
            return array(at)
        if type_ is ValueType.STRING:
            found.append((at, 8))
            return at + 8 + int(struct.unpack_from("<Q", content, at)[0])
        return at + SCALARS[type_].size

    for key in header.keys.values():
        found += [(at, 8), (at + 8 + len(key.name.encode()), 4)]
        at = value(at + 12 + len(key.name.encode()), key.type)
    for tensor in header.tensors.values():
        name_end = at + 8 + len(tensor.name.encode())
        dims = [(name_end + 4 + 8 * n, 8) for n in range(len(tensor.shape))]
        after = name_end + 4 + 8 * len(dims)
        found += [(at, 8), (name_end, 4), *dims, (after, 4), (after + 4, 8)]
        at = after + 12
    assert at == header.header_bytes
    return found


PLACES = [(base, place) for base in BASES for place in places(base)]
ABSURD = st.sampled_from(
    (
        *(0, 1, 2, 5, 12, 13, 63, 64, 255, 10**6, 2**16, 2**27, 2**30, 2**31 - 1, 2**31, 2**32 - 1),
        *(2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1, 2**64 // 12),
    )
)


@examples(6000)
@given(st.lists(st.tuples(st.integers(0, len(PLACES) - 1), ABSURD), min_size=1, max_size=2))
def test_inflated_counts_and_lengths(damage: list[tuple[int, int]]) -> None:
    base = PLACES[damage[0][0]][0]
    content = bytearray(base)
    for number, value in damage:
        other, (offset, size) = PLACES[number]
        if other is base:
            content[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    reads_or_is_refused(bytes(content))


@examples(1500)
@given(gguf_strategies.keys(), tensors(), st.integers(0, 9), st.booleans())
def test_doubled_entries(keys: dict[str, Any], infos: dict[str, Any], which: int, is_key: bool) -> None:
    header, _ = header_of({"a": 1, **keys}, {"t": ((4,), TensorType.F32), **infos})
    names = [*keys, "a"]
    if is_key:
        name = names[which % len(names)]
        doubled = bytearray(header[:PREFIX_BYTES] + entry(name, {"a": 1, **keys}[name]) + header[PREFIX_BYTES:])
        struct.pack_into("<Q", doubled, 16, len(keys) + 2)
    else:
        doubled = bytearray(header + description("t", (4,), TensorType.F32, 0))
        struct.pack_into("<Q", doubled, 8, len(infos) + (0 if "t" in infos else 1) + 1)
    assert reads_or_is_refused(bytes(doubled) + bytes(1 << 12)) is None


@examples(500)
@given(st.binary(max_size=400))
def test_noise(noise: bytes) -> None:
    reads_or_is_refused(noise)
    reads_or_is_refused(b"GGUF" + struct.pack("<I", 3) + noise)
    reads_or_is_refused(b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + noise)


@examples(1000)
@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    st.sampled_from([(), ("draft-mtp",), ("draft-simple",), ("draft-eagle3",)]),
    st.booleans(),
)
def test_preflight_of_damaged_files_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    base: bytes,
    changes: list[tuple[int, int]],
    types: tuple[str, ...],
    is_drafter: bool,
) -> None:
    content = bytearray(base)
    for place, byte in changes:
        content[place % len(content)] = byte
    whole, damaged = (tmp_path_factory.getbasetemp() / name for name in ("whole.gguf", "damaged.gguf"))
    whole.write_bytes(BASES[0])
    damaged.write_bytes(content)
    preflight(whole, damaged, types) if is_drafter else preflight(damaged, None, types)


def test_types_have_the_sizes_that_gguf_py_gives_them() -> None:
    ours = {int(t): (t.block_values, t.block_bytes) for t in TensorType}
    theirs = {int(t): sizes for t, sizes in GGML_QUANT_SIZES.items()}
    assert theirs.keys() <= ours.keys()
    assert {t for t in ours if ours[t] != theirs.get(t)} <= set(NOT_IN_GGUF_PY)


def test_the_bases_are_sound(tmp_path: Path) -> None:
    for number, base in enumerate(BASES):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(base)
        assert read_file(path).file_bytes == len(base)
        if number < len(BASES) - 1:
            assert inspect_file(path).problems == ()
