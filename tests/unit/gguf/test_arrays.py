"""Keys with one value a block follow the number of blocks; nothing else does (field case 13)."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import Architecture, architecture_of
from orchestrator.gguf.arrays import Depth, extended, shortened, value_at
from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import ValueType
from tests.support.gguf_bytes import Items, gguf

I32, U32, F32, BOOL, STRING = (
    ValueType.INT32,
    ValueType.UINT32,
    ValueType.FLOAT32,
    ValueType.BOOL,
    ValueType.STRING,
)
ARCH = architecture_of("step35")


@pytest.fixture
def header(tmp_path: Path) -> Any:
    def make(name: str, keys: dict[str, Any], arch: str = "step35") -> Header:
        named = {f"{arch}.{key}": value for key, value in keys.items()}
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(gguf({"general.architecture": arch, **named}))
        return read_file(path)

    return make


def ints(*values: int) -> Items:
    return Items(I32, values)


def plain(key: Any) -> Any:
    value = key.value
    assert isinstance(value, Array)
    return [v.values() if isinstance(v, Array) else v for v in value.values()]


def grown(
    base: Header,
    donor: Header,
    *,
    trunk: int = 3,
    announced: int = 0,
    at: int = 3,
    heads: int = 1,
    arch: Architecture = ARCH,
) -> dict[str, Any]:
    keys = extended(base, Depth(trunk, announced), donor, range(at, at + heads), arch)
    return {key.name.removeprefix("step35."): plain(key) for key in keys}


def refused(base: Header, donor: Header, **more: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        grown(base, donor, **more)
    assert caught.value.code is Code.GRAFT_REFUSED
    return caught.value


def test_the_donors_own_value_is_added(header: Any) -> None:
    base = header("base", {"attention.head_count": ints(2, 4, 2)})
    donor = header("donor", {"attention.head_count": ints(1, 1, 1, 1, 1, 9)})
    assert grown(base, donor, at=5) == {"attention.head_count": [2, 4, 2, 9]}


def test_several_heads_get_theirs(header: Any) -> None:
    base = header("base", {"swiglu_clamp_exp": Items(F32, [0.0, 7.0, 7.0])})
    donor = header("donor", {"swiglu_clamp_exp": Items(F32, [0.5, 1.5])})
    assert grown(base, donor, at=0, heads=2) == {"swiglu_clamp_exp": [0.0, 7.0, 7.0, 0.5, 1.5]}


def test_a_donor_that_says_one_value_for_all_says_it_for_the_head(header: Any) -> None:
    base = header("base", {"feed_forward_length": ints(8, 8, 16)})
    donor = header("donor", {"feed_forward_length": (U32, 32)})
    assert grown(base, donor, at=40) == {"feed_forward_length": [8, 8, 16, 32]}


@pytest.mark.parametrize(
    "said", [{}, {"attention.head_count": ints(1, 1, 1)}, {"attention.head_count": Items(I32, [1] * 5000)}]
)
def test_a_donor_that_does_not_say_is_refused(header: Any, said: dict[str, Any]) -> None:
    base = header("base", {"attention.head_count": ints(2, 4, 2)})
    error = refused(base, header("donor", said))
    assert error.details == {"key": "step35.attention.head_count"}
    assert "block 3" in error.message and "donor.gguf" in error.message


def test_a_base_that_announces_a_head_says_it_itself(header: Any) -> None:
    base = header("base", {"attention.head_count": ints(2, 4, 2, 6)})
    assert grown(base, header("silent", {}), announced=1) == {}
    donor = header("donor", {"attention.head_count": ints(0, 0, 0, 8)})
    assert grown(base, donor, announced=1) == {"attention.head_count": [2, 4, 2, 8]}
    assert "block 4" in refused(base, header("silent", {}), announced=1, heads=2).message


def test_types_stay_those_of_the_base(header: Any) -> None:
    """gguf-py makes INT32 of every array of whole numbers."""
    base = header(
        "base",
        {
            "attention.head_count": Items(ValueType.UINT16, [2, 4, 2]),
            "attention.sliding_window_pattern": Items(BOOL, [True, False, True]),
            "attention.recurrent_layers": Items(ValueType.UINT8, [1, 1, 0]),
            "swiglu_clamp_exp": Items(F32, [1.0, 2.0, 3.0]),
        },
    )
    donor = header(
        "donor",
        {
            "attention.head_count": Items(ValueType.INT64, [0, 0, 0, 3]),
            "attention.sliding_window_pattern": ints(0, 0, 0, 1),
            "attention.recurrent_layers": Items(BOOL, [False] * 4),
            "swiglu_clamp_exp": Items(ValueType.FLOAT64, [0.0, 0.0, 0.0, 0.5]),
        },
    )
    keys = extended(base, Depth(3, 0), donor, [3], ARCH)
    for key in keys:
        assert key.value.type is base.array(key.name).type  # type: ignore[union-attr]
    assert [plain(key)[-1] for key in keys] == [3, True, 0, 0.5]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Items(ValueType.UINT8, [1, 1, 1]), ints(0, 0, 0, 256)),
        (Items(BOOL, [True, True, True]), ints(0, 0, 0, 2)),
        (ints(1, 1, 1), Items(F32, [0, 0, 0, 1.5])),
        (ints(1, 1, 1), Items(STRING, ["", "", "", "1"])),
        (Items(STRING, ["a", "b", "c"]), ints(0, 0, 0, 1)),
    ],
)
def test_a_value_that_does_not_fit_is_refused(header: Any, mine: Items, theirs: Items) -> None:
    error = refused(header("base", {"custom": mine}), header("donor", {"custom": theirs}))
    assert error.details == {"key": "step35.custom"}
    assert mine.type.name in error.message and theirs.type.name in error.message


def test_arrays_of_strings_and_of_arrays(header: Any) -> None:
    rows = [Items(I32, [1]), Items(I32, []), Items(I32, [2, 3])]
    base = header("base", {"names": Items(STRING, ["a", "", "c"]), "rows": Items(ValueType.ARRAY, rows)})
    more = Items(ValueType.ARRAY, [*rows, Items(I32, [7, 8])])
    donor = header("donor", {"names": Items(STRING, ["", "", "", "dé"]), "rows": more})
    assert grown(base, donor) == {"names": ["a", "", "c", "dé"], "rows": [[1], [], [2, 3], [7, 8]]}


def test_scalars_and_arrays_of_other_lengths_stay(header: Any) -> None:
    keys = {"attention.head_count": (U32, 2), "custom": ints(1, 2), "empty": Items(I32, []), "longer": ints(1, 2, 3, 4)}
    donor = header("donor", {key: ints(1, 2, 3, 4) for key in keys})
    assert grown(header("base", keys), donor) == {}


def test_what_is_known_to_have_nothing_to_do_with_blocks_stays(header: Any) -> None:
    """A model of four blocks has as many blocks as rope has sections."""
    base = header("base", {"rope.dimension_sections": ints(1, 2, 3, 4), "ple.layers": ints(1, 2, 3, 4)})
    assert grown(base, header("donor", {}), trunk=4) == {}
    assert shortened(base, Depth(3, 1), ARCH) == []


def test_arrays_of_the_trunk_alone_stay(header: Any) -> None:
    keys = {"attention.indexer.types": ints(1, 0, 1)}
    base, donor = header("base", keys, "glm-dsa"), header("donor", {}, "glm-dsa")
    arch = architecture_of("glm-dsa")
    assert extended(base, Depth(3, 0), donor, [3], arch) == []
    assert shortened(base, Depth(3, 0), arch) == []


def test_a_length_that_llama_cpp_refuses_is_refused_with_the_numbers(header: Any) -> None:
    base = header("base", {"attention.head_count": ints(1, 2)})
    error = refused(base, header("donor", {"attention.head_count": (U32, 1)}), announced=1)
    assert error.details == {"key": "step35.attention.head_count"}
    assert "2 values" in error.message and "3 or 4" in error.message


def test_a_pattern_that_goes_on_beyond_the_blocks_has_said_it_all(header: Any) -> None:
    pattern = {"attention.sliding_window_pattern": Items(BOOL, [True, False, True, True, True])}
    assert grown(header("base", pattern), header("donor", {})) == {}
    assert shortened(header("base", pattern), Depth(3, 1), ARCH) == []


def test_a_pattern_that_says_nothing_of_the_head_stays(header: Any) -> None:
    """llama.cpp takes such blocks for full attention, in the donor too."""
    base = header("base", {"attention.sliding_window_pattern": Items(BOOL, [True, False, True])})
    assert grown(base, header("donor", {})) == {}
    assert grown(base, header("short", {"attention.sliding_window_pattern": Items(BOOL, [True] * 3)})) == {}
    longer = header("longer", {"attention.sliding_window_pattern": Items(BOOL, [False, False, False, True])})
    assert grown(base, longer, heads=2) == {"attention.sliding_window_pattern": [True, False, True, True]}


def test_a_strip_takes_the_heads_values_away(header: Any) -> None:
    keys = {
        "attention.head_count": ints(1, 2, 3, 4),
        "custom": Items(STRING, ["a", "b", "c", "d"]),
        "other": ints(1, 2, 3),
    }
    found = shortened(header("base", keys), Depth(3, 1), ARCH)
    assert {key.name: plain(key) for key in found} == {
        "step35.attention.head_count": [1, 2, 3],
        "step35.custom": ["a", "b", "c"],
    }


def test_a_value_of_a_block(header: Any) -> None:
    found = header("base", {"one": (U32, 7), "each": ints(1, 2, 3), "many": Items(I32, range(5000))})
    assert [value_at(found, "one", 9), value_at(found, "each", 2), value_at(found, "each", 3)] == [7, 3, None]
    assert value_at(found, "many", 0) is None and value_at(found, "none", 0) is None
