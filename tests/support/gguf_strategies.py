"""Hypothesis strategies for keys of GGUF files: every value type, empty and nested arrays."""

from typing import Any

from hypothesis import strategies as st

from orchestrator.gguf.types import ValueType
from tests.support.gguf_bytes import Items

_BITS = {
    ValueType.UINT8: (0, 8),
    ValueType.UINT16: (0, 16),
    ValueType.UINT32: (0, 32),
    ValueType.UINT64: (0, 64),
    ValueType.INT8: (1, 7),
    ValueType.INT16: (1, 15),
    ValueType.INT32: (1, 31),
    ValueType.INT64: (1, 63),
}
SCALAR_TYPES = tuple(type_ for type_ in ValueType if type_ not in (ValueType.STRING, ValueType.ARRAY))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def scalars(type_: ValueType) -> st.SearchStrategy[Any]:
    """Values of a fixed-size type."""
    if type_ in _BITS:
        signed, bits = _BITS[type_]
        return st.integers(-(1 << bits) if signed else 0, (1 << bits) - 1)
    if type_ is ValueType.BOOL:
        return st.booleans()
    return st.floats(width=32 if type_ is ValueType.FLOAT32 else 64, allow_nan=False)


def items(depth: int = 2) -> st.SearchStrategy[Items]:
    """Arrays, empty ones too, nested up to `depth` times."""
    flat = st.sampled_from(SCALAR_TYPES).flatmap(
        lambda type_: st.builds(Items, st.just(type_), st.lists(scalars(type_), max_size=5))
    )
    texts = st.builds(Items, st.just(ValueType.STRING), st.lists(TEXT, max_size=5))
    if depth == 0:
        return flat | texts
    nested = st.builds(Items, st.just(ValueType.ARRAY), st.lists(items(depth - 1), max_size=3))
    return flat | texts | nested


def values() -> st.SearchStrategy[tuple[ValueType, Any]]:
    """A type and a value of it."""
    scalar = st.sampled_from(SCALAR_TYPES).flatmap(lambda type_: st.tuples(st.just(type_), scalars(type_)))
    text = st.tuples(st.just(ValueType.STRING), TEXT)
    array = st.tuples(st.just(ValueType.ARRAY), items())
    return scalar | text | array


def keys(prefix: str = "some.") -> st.SearchStrategy[dict[str, tuple[ValueType, Any]]]:
    """Keys whose names begin with `prefix`."""
    names = st.text("abcdefghijklmnopqrstuvwxyz_.0123456789", min_size=1, max_size=10).map(lambda n: f"{prefix}{n}")
    return st.dictionaries(names, values(), max_size=6)
