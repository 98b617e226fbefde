"""What a graft writes, byte for byte, on files of some kilobytes; whether the result drafts is an integration test."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.copying import PIECE_BYTES
from orchestrator.gguf.extract import strip
from orchestrator.gguf.graft import graft, plan_graft
from orchestrator.gguf.model import open_model
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import ValueType
from orchestrator.gguf.writer import PADDING_KEY
from orchestrator.schemas.gguf import GraftPlan
from tests.support.gguf_bytes import Items
from tests.support.tensors import keys_of, tensors_of
from tests.support.tiny import ARCH, F32, WIDTH, Tiny, head_only, large

U8, U16, U32, I32, U64 = (
    ValueType.UINT8,
    ValueType.UINT16,
    ValueType.UINT32,
    ValueType.INT32,
    ValueType.UINT64,
)
BLOCKS, HEADS = f"{ARCH}.block_count", f"{ARCH}.nextn_predict_layers"
ANOTHER = head_only(seed=9)
LARGE_BYTES = 2 << 20


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Tiny().write(tmp_path / "base.gguf")


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    return head_only().write(tmp_path / "donor.gguf")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refused(code: Code, *paths: Path, **options: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        graft(*paths, **options)
    assert caught.value.code is code
    return caught.value


def changes(plan: GraftPlan) -> dict[str, tuple[str | None, str | None]]:
    """What changes beside provenance and padding."""
    return {c.key: (c.before, c.after) for c in plan.keys if not c.key.startswith("slipstream.")}


def test_blocks_are_counted_and_renumbered(base: Path, donor: Path, out: Path) -> None:
    plan = graft(base, donor, out)
    assert (plan.base_blocks, plan.head_blocks, len(plan.tensors)) == (2, 1, 14)
    assert changes(plan) == {BLOCKS: ("2", "3"), HEADS: (None, "1")}
    assert plan.outputs == ("out.gguf",) and plan.size_bytes == out.stat().st_size
    found, from_donor = tensors_of(out), tensors_of(donor)
    for change in plan.tensors:
        assert change.donor_name == change.name.replace("blk.2.", "blk.7.")
        assert found.pop(change.name) == from_donor[change.donor_name]
    assert found == tensors_of(base)


def test_a_plan_is_what_a_graft_does_and_writes_nothing(base: Path, donor: Path, out: Path) -> None:
    before = sorted(out.parent.iterdir())
    plan = plan_graft(base, donor, out_name=out.name)
    assert sorted(out.parent.iterdir()) == before
    assert graft(base, donor, out) == plan
    assert plan_graft(base, donor).outputs == ("base-MTP.gguf",)


def test_keys_that_are_not_touched_are_the_same_bytes_in_the_same_order(tmp_path: Path, donor: Path, out: Path) -> None:
    odd: dict[str, Any] = {
        "z.first": (U8, 200),
        "z.big": (U64, 1 << 63),
        "z.flag": True,
        "z.empty": Items(I32, []),
        "z.none": Items(ValueType.STRING, []),
        "z.nested": Items(ValueType.ARRAY, [Items(U8, [1, 2]), Items(ValueType.ARRAY, [Items(ValueType.BOOL, [])])]),
        "z.not utf-8": b"\xff\xfe",
        "a.last": Items(U8, [1, 255]),
    }
    base = Tiny(more_keys=odd).write(tmp_path / "odd.gguf")
    plan = graft(base, donor, out)
    before, after = read_file(base).keys, read_file(out).keys
    assert [key for key in after if key in before] == list(before)
    same = [key for key in before if bytes(before[key].raw) == bytes(after[key].raw)]
    assert same == [key for key in before if key != BLOCKS]
    assert plan.untouched_keys == len(same) and plan.untouched_tensors == len(tensors_of(base))


@pytest.mark.parametrize(("type_", "heads_type"), [(U32, U16), (U8, I32), (U64, ValueType.INT64)])
def test_counts_keep_their_types(
    tmp_path: Path, donor: Path, out: Path, type_: ValueType, heads_type: ValueType
) -> None:
    keys = {BLOCKS: (type_, 3), HEADS: (heads_type, 1)}
    base = Tiny(announced=1, more_keys=keys).write(tmp_path / "base.gguf")
    assert changes(graft(base, donor, out)) == {}
    assert [read_file(out).keys[key].type for key in keys] == [type_, heads_type]
    two = head_only(heads=2).write(tmp_path / "two.gguf")
    assert changes(graft(base, two, out, overwrite=True)) == {BLOCKS: ("3", "4"), HEADS: ("1", "2")}
    assert [read_file(out).keys[key].type for key in keys] == [type_, heads_type]


def test_a_count_that_its_type_cannot_hold_is_refused(tmp_path: Path, donor: Path, out: Path) -> None:
    base = Tiny(trunk=127, more_keys={BLOCKS: (ValueType.INT8, 127)}).write(tmp_path / "base.gguf")
    error = refused(Code.GRAFT_REFUSED, base, donor, out)
    assert error.details == {"key": BLOCKS} and "INT8" in error.message and "128" in error.message


def test_a_count_of_the_wrong_kind_is_refused(tmp_path: Path, donor: Path, out: Path) -> None:
    base = Tiny(more_keys={HEADS: "none"}).write(tmp_path / "base.gguf")
    assert refused(Code.GRAFT_REFUSED, base, donor, out).details == {"key": HEADS}


def test_provenance_says_from_what_and_nothing_of_this_machine(tmp_path: Path, donor: Path, out: Path) -> None:
    base = large(LARGE_BYTES).write_filled(tmp_path / "large.gguf")
    graft(base, donor, out)
    header = read_file(base)
    said = {k.removeprefix("slipstream.graft."): v for k, v in keys_of(out).items() if k.startswith("slipstream.")}
    assert set(said.pop("padding")) <= {"."}
    assert said == {
        "base_header_sha256": hashlib.sha256(base.read_bytes()[: header.header_bytes]).hexdigest(),
        "donor_sha256": sha256(donor),
        "tool_version": __version__,
    }
    assert str(out.parent).encode() not in out.read_bytes()[: read_file(out).header_bytes]


def test_the_digest_of_the_base_is_said_where_it_is_known(base: Path, donor: Path, out: Path) -> None:
    key = "slipstream.graft.base_sha256"
    graft(base, donor, out, base_sha256="ab" * 32, donor_sha256="cd" * 32)
    assert keys_of(out)[key] == "ab" * 32 and keys_of(out)["slipstream.graft.donor_sha256"] == "cd" * 32
    plan = graft(base, donor, out, hash_base=True, overwrite=True)
    assert keys_of(out)[key] == sha256(base)
    assert plan == plan_graft(base, donor, base_sha256=sha256(base), out_name=out.name)
    for digest in ("", "ab", f"{'AB' * 32}", f"{'ab' * 32},{'ab' * 32}"):
        refused(Code.INVALID_REQUEST, base, donor, out, overwrite=True, base_sha256=digest)


def test_the_same_inputs_give_the_same_bytes(base: Path, donor: Path, out: Path, tmp_path: Path) -> None:
    graft(base, donor, out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (base, donor):
        (elsewhere / f"renamed-{path.name}").write_bytes(path.read_bytes())
    graft(elsewhere / "renamed-base.gguf", elsewhere / "renamed-donor.gguf", elsewhere / "x.gguf")
    assert (elsewhere / "x.gguf").read_bytes() == out.read_bytes()


def test_a_second_graft_changes_nothing(base: Path, donor: Path, out: Path, tmp_path: Path) -> None:
    graft(base, donor, out)
    assert plan_graft(out, donor).nothing_to_do
    plan = graft(out, donor, tmp_path / "again.gguf")
    assert plan.nothing_to_do and plan.tensors == () and plan.keys == ()
    assert plan.outputs == ("again.gguf",) and plan.untouched_tensors == len(tensors_of(out))
    assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()
    # The same head in another file is the same head.
    graft(out, head_only(more_keys={"general.name": "again"}).write(tmp_path / "same.gguf"), tmp_path / "third.gguf")
    assert (tmp_path / "third.gguf").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    "donor", [Tiny(heads=1), Tiny(trunk=0, heads=1, head_at=2), Tiny(trunk=1, heads=1, alignment=64, version=2)]
)
def test_any_file_with_a_head_is_a_donor(base: Path, out: Path, tmp_path: Path, donor: Tiny) -> None:
    """A whole model, a drafter, and a model of another depth."""
    plan = graft(base, donor.write(tmp_path / "donor.gguf"), out)
    assert len(plan.tensors) == 14
    assert {c.name for c in plan.tensors} == {n for n in Tiny(heads=1).tensors if n.startswith("blk.2.")}


def test_another_head_is_refused_unless_it_may_go(base: Path, donor: Path, out: Path, tmp_path: Path) -> None:
    graft(base, donor, out)
    other = ANOTHER.write(tmp_path / "other.gguf")
    error = refused(Code.GRAFT_REFUSED, out, other, tmp_path / "new.gguf")
    assert error.details == {"tensor": "blk.2.attn_norm.weight"}
    assert "14 tensors" in error.message and "blk.2" in error.message and "--replace" in (error.hint or "")
    plan = graft(out, other, tmp_path / "new.gguf", replace=True)
    assert all(change.replaces for change in plan.tensors) and len(plan.tensors) == 14
    assert not plan.warnings
    graft(base, other, tmp_path / "direct.gguf")
    assert tensors_of(tmp_path / "new.gguf") == tensors_of(tmp_path / "direct.gguf")
    assert keys_of(tmp_path / "new.gguf")["slipstream.graft.donor_sha256"] == sha256(other)


def test_tensors_that_go_without_a_new_one_are_told(base: Path, out: Path, tmp_path: Path) -> None:
    own = {"blk.7.nextn.shared_head_norm.weight": ((WIDTH,), F32)}
    graft(base, head_only(more_tensors=own).write(tmp_path / "own.gguf"), out)
    plan = graft(out, ANOTHER.write(tmp_path / "other.gguf"), tmp_path / "new.gguf", replace=True)
    (warning,) = plan.warnings
    assert "blk.2.nextn.shared_head_norm.weight" in warning
    assert "blk.2.nextn.shared_head_norm.weight" not in tensors_of(tmp_path / "new.gguf")


def test_fewer_heads_may_replace_more(base: Path, donor: Path, out: Path, tmp_path: Path) -> None:
    graft(base, head_only(heads=3).write(tmp_path / "three.gguf"), out)
    plan = graft(out, donor, tmp_path / "new.gguf", replace=True)
    assert changes(plan) == {BLOCKS: ("5", "3"), HEADS: ("3", "1")}
    strip(tmp_path / "new.gguf", tmp_path / "stripped.gguf")
    assert (tmp_path / "stripped.gguf").read_bytes() == base.read_bytes()


def test_a_trunk_that_announces_its_head_gets_it(donor: Path, out: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter leaves it where trunk and head are kept apart."""
    base = Tiny(announced=1).write(tmp_path / "announcing.gguf")
    plan = graft(base, donor, out)
    assert changes(plan) == {} and len(plan.tensors) == 14


def test_a_name_that_becomes_too_long_is_refused(tmp_path: Path, donor: Path, out: Path) -> None:
    base = Tiny(trunk=10).write(tmp_path / "ten.gguf")
    name = "blk.7." + "x" * 57
    error = refused(
        Code.GRAFT_REFUSED, base, head_only(more_tensors={name: ((8,), F32)}).write(tmp_path / "long.gguf"), out
    )
    assert error.details == {"tensor": name}


def test_bytes_behind_the_last_tensor_are_left_behind(base: Path, donor: Path, out: Path) -> None:
    graft(base, donor, out)
    whole = out.read_bytes()
    base.write_bytes(base.read_bytes() + b"trailing" * 999)
    graft(base, donor, out, overwrite=True)
    assert out.read_bytes() == whole


@pytest.mark.parametrize("which", ["base", "donor"])
def test_an_input_is_never_written_to(base: Path, donor: Path, which: str) -> None:
    path = {"base": base, "donor": donor}[which]
    before = path.read_bytes()
    refused(Code.CONFLICT, base, donor, path, overwrite=True)
    assert path.read_bytes() == before


def test_a_result_that_is_there_costs_no_hashing(base: Path, donor: Path, out: Path) -> None:
    out.write_text("mine")
    heard: list[int] = []
    refused(Code.CONFLICT, base, donor, out, progress=lambda done, total: heard.append(done))
    assert heard == [] and out.read_text() == "mine"


def test_progress_ends_at_its_total(base: Path, donor: Path, out: Path) -> None:
    heard: list[tuple[int, int]] = []
    plan = graft(base, donor, out, hash_base=True, progress=lambda *seen: heard.append(seen))
    total = plan.size_bytes + base.stat().st_size + donor.stat().st_size
    assert {t for _, t in heard} == {total}
    assert [d for d, _ in heard] == sorted(d for d, _ in heard) and heard[-1][0] == total


class TestSplit:
    """Split bases and donors (field case 16)."""

    @pytest.fixture
    def shards(self, tmp_path: Path) -> list[Path]:
        return Tiny(trunk=3).write_split(tmp_path, "base", (5, 12))

    def load(self, folder: Path, plan: GraftPlan) -> dict[str, Any]:
        """All tensors of a result, whose shards must fit together."""
        open_model(folder / plan.outputs[-1])
        found: dict[str, Any] = {}
        for name in plan.outputs:
            found |= tensors_of(folder / name)
        return found

    @pytest.mark.parametrize("opened", [0, 1, 2])
    def test_any_shard_is_the_model(self, shards: list[Path], donor: Path, out: Path, opened: int) -> None:
        plan = graft(shards[opened], donor, out)
        whole = Tiny(trunk=3).write(out.with_name("whole.gguf"))
        expected = graft(whole, donor, out.with_name("expected.gguf"))
        assert self.load(out.parent, plan) == self.load(out.parent, expected)
        keys = {k: v for k, v in keys_of(out).items() if not k.startswith("slipstream.")}
        assert keys == {k: v for k, v in keys_of(out.with_name("expected.gguf")).items() if k in keys}
        assert not any(key.startswith("split.") for key in keys)

    def test_a_missing_shard_is_named(self, shards: list[Path], donor: Path, out: Path) -> None:
        shards[1].unlink()
        error = refused(Code.NOT_FOUND, shards[2], donor, out)
        assert shards[1].name in error.message

    def test_the_head_as_one_more_shard(self, shards: list[Path], donor: Path, out: Path) -> None:
        plan = graft(shards[0], donor, out, layout="shard")
        assert plan.outputs == tuple(f"out-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4))
        assert len(self.load(out.parent, plan)) == len(Tiny(trunk=3).tensors) + 14
        for number, name in enumerate(plan.outputs):
            header = read_file(out.parent / name)
            assert [header.integer(f"split.{k}") for k in ("no", "count", "tensors.count")] == [
                number,
                4,
                len(Tiny(trunk=3).tensors) + 14,
            ]
            assert [header.keys[f"split.{k}"].type for k in ("no", "count", "tensors.count")] == [U16, U16, I32]
        for old, name in zip(shards[1:], plan.outputs[1:], strict=False):
            assert tensors_of(out.parent / name) == tensors_of(old)
        assert list(tensors_of(out.parent / plan.outputs[3])) == [c.name for c in plan.tensors]

    def test_a_single_file_becomes_the_first_of_two(self, base: Path, donor: Path, out: Path) -> None:
        plan = graft(base, donor, out, layout="shard")
        assert plan.outputs == ("out-00001-of-00002.gguf", "out-00002-of-00002.gguf")
        assert tensors_of(out.parent / plan.outputs[0]) == tensors_of(base)
        assert len(self.load(out.parent, plan)) == len(Tiny(heads=1).tensors)

    def test_the_extra_shard_has_the_alignment_of_the_others(self, tmp_path: Path, donor: Path, out: Path) -> None:
        base = Tiny(alignment=64).write(tmp_path / "aligned.gguf")
        plan = graft(base, donor, out, layout="shard")
        assert [read_file(tmp_path / name).alignment for name in plan.outputs] == [64, 64]

    @pytest.mark.parametrize("layout", ["single", "shard"])
    def test_stripping_gives_back_what_was_there(
        self, shards: list[Path], donor: Path, out: Path, layout: Any, tmp_path: Path
    ) -> None:
        plan = graft(shards[0], donor, out, layout=layout)
        stripped = strip(tmp_path / plan.outputs[0], tmp_path / "stripped.gguf")
        if layout == "single":
            whole = Tiny(trunk=3).write(tmp_path / "whole.gguf")
            assert tensors_of(tmp_path / "stripped.gguf") == tensors_of(whole)
            assert {k: v for k, v in keys_of(tmp_path / "stripped.gguf").items() if k != PADDING_KEY} == keys_of(whole)
            return
        assert len(stripped.outputs) == 3
        for old, name in zip(shards, stripped.outputs, strict=True):
            assert (tmp_path / name).read_bytes() == old.read_bytes()

    def test_a_second_graft_copies_the_shards(self, shards: list[Path], donor: Path, out: Path, tmp_path: Path) -> None:
        first = graft(shards[0], donor, out, layout="shard")
        grafted = tmp_path / first.outputs[0]
        again = graft(grafted, donor, tmp_path / "again.gguf", layout="shard")
        assert again.nothing_to_do
        for old, new in zip(first.outputs, again.outputs, strict=True):
            assert (tmp_path / old).read_bytes() == (tmp_path / new).read_bytes()
        joined = graft(grafted, donor, tmp_path / "joined.gguf")
        assert not joined.nothing_to_do and joined.tensors == ()
        assert len(tensors_of(tmp_path / "joined.gguf")) == len(Tiny(trunk=3).tensors) + 14

    def test_the_old_extra_shard_goes(self, shards: list[Path], donor: Path, out: Path, tmp_path: Path) -> None:
        first = graft(shards[0], donor, out, layout="shard")
        other = ANOTHER.write(tmp_path / "other.gguf")
        second = graft(tmp_path / first.outputs[0], other, tmp_path / "new.gguf", layout="shard", replace=True)
        assert len(second.outputs) == 4
        assert self.load(tmp_path, second)["blk.3.attn_q.weight"] == tensors_of(other)["blk.7.attn_q.weight"]

    def test_names_that_would_mislead_are_refused(self, base: Path, donor: Path, tmp_path: Path) -> None:
        error = refused(Code.CONFLICT, base, donor, tmp_path / "x-00001-of-00002.gguf")
        assert "shard" in error.message
        refused(Code.CONFLICT, base, donor, tmp_path / "x-00001-of-00003.gguf", layout="shard")
        plan = graft(base, donor, tmp_path / "x-00002-of-00002.gguf", layout="shard")
        assert plan.outputs == ("x-00001-of-00002.gguf", "x-00002-of-00002.gguf")

    def test_no_shard_of_an_input_is_written_to(self, shards: list[Path], donor: Path, tmp_path: Path) -> None:
        four = tmp_path / "four-00003-of-00004.gguf"
        four.hardlink_to(shards[1])
        before = [path.read_bytes() for path in shards]
        refused(Code.CONFLICT, shards[0], donor, tmp_path / "four.gguf", layout="shard", overwrite=True)
        assert [path.read_bytes() for path in shards] == before

    def test_a_split_donor(self, base: Path, out: Path, tmp_path: Path) -> None:
        parts = replace(Tiny(trunk=1, heads=1), seed=3).write_split(tmp_path, "donor", (4, 15))
        plan = graft(base, parts[1], out)
        assert keys_of(out)["slipstream.graft.donor_sha256"] == ",".join(map(sha256, parts))
        from_donor: dict[str, Any] = {}
        for part in parts:
            from_donor |= tensors_of(part)
        found = tensors_of(out)
        assert all(found[c.name] == from_donor[c.donor_name] for c in plan.tensors)

    def test_a_first_shard_without_tensors(self, donor: Path, out: Path, tmp_path: Path) -> None:
        """gguf-split --no-tensor-first-split."""
        shards = Tiny().write_split(tmp_path, "base", (0,))
        plan = graft(shards[0], donor, out, layout="shard")
        assert len(plan.outputs) == 3 and len(self.load(tmp_path, plan)) == len(Tiny(heads=1).tensors)
        joined = graft(shards[0], donor, tmp_path / "joined.gguf")
        assert self.load(tmp_path, joined) == self.load(tmp_path, plan)


def test_padding_is_made_anew_and_reported(donor: Path, out: Path, tmp_path: Path) -> None:
    """With it, the base's data lies within a piece as it did: its blocks can be shared."""
    base = large(LARGE_BYTES).write_filled(tmp_path / "large.gguf")
    plan = graft(base, donor, out)
    assert [c.key for c in plan.keys][-1] == [*keys_of(out)][-1] == PADDING_KEY
    again = graft(out, ANOTHER.write(tmp_path / "other.gguf"), tmp_path / "new.gguf", replace=True)
    assert changes(again) == {}
    assert [*keys_of(tmp_path / "new.gguf")].count(PADDING_KEY) <= 1
    offsets = {read_file(path).data_offset % PIECE_BYTES for path in (base, out, tmp_path / "new.gguf")}
    assert len(offsets) == 1
    strip(tmp_path / "new.gguf", tmp_path / "stripped.gguf")
    assert (tmp_path / "stripped.gguf").read_bytes() == base.read_bytes()


def test_little_is_not_padded_for(base: Path, donor: Path, out: Path) -> None:
    graft(base, donor, out)
    assert PADDING_KEY not in keys_of(out)
