"""Well-formed files of every make are grafted and come apart again; damaged ones are refused, and nothing else."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import graft, plan_graft
from orchestrator.gguf.model import open_model, shard_name
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import ValueType
from tests.support.gguf_bytes import Items
from tests.support.gguf_strategies import keys
from tests.support.tiny import ARCH, FF, Tiny

pytestmark = pytest.mark.integration

SHARED_MEMORY = Path("/dev/shm")
ALLOWED = {Code.INVALID_GGUF, Code.GRAFT_REFUSED, Code.NOT_FOUND}


@dataclass(frozen=True)
class Case:
    """A base and a donor of any make; shard sizes are empty for a single file."""

    base: Tiny
    donor: Tiny
    base_shards: tuple[int, ...]
    donor_shards: tuple[int, ...]
    layout: Any


@contextmanager
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: these tests sync thousands of files."""
    with TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as name:
        yield Path(name)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    makes = st.fixed_dictionaries(
        {
            "alignment": st.sampled_from([16, 32, 64]),
            "version": st.sampled_from([2, 3]),
            "trunk": st.integers(1, 5),
            "tokenizer": st.booleans(),
            "seed": st.integers(1, 9),
        }
    )
    made: list[dict[str, Any]] = [draw(makes), draw(makes)]
    base, donor = Tiny(**made[0]), Tiny(**made[1])
    heads = draw(st.integers(1, 2))
    odd = draw(keys("some."))
    by_block: dict[str, Any] = {}
    if draw(st.booleans()):
        type_ = draw(st.sampled_from([ValueType.INT32, ValueType.UINT8, ValueType.UINT64]))
        by_block = {f"{ARCH}.feed_forward_length": Items(type_, [FF] * base.trunk)}
    base = replace(base, more_keys={**odd, **by_block}, announced=0)
    donor = replace(donor, heads=heads, trunk=donor.trunk if draw(st.booleans()) else 0, head_at=donor.trunk)
    return Case(base, donor, draw(splits(base)), draw(splits(donor)), draw(st.sampled_from(["single", "shard"])))


def splits(model: Tiny) -> st.SearchStrategy[tuple[int, ...]]:
    count = len(model.tensors)
    return (
        st.just(()) | st.tuples(st.integers(1, count // 2)) | st.tuples(st.integers(1, count // 3), st.integers(1, 9))
    )


def write(model: Tiny, into: Path, name: str, shards: tuple[int, ...]) -> Path:
    """The first file of a model."""
    if shards:
        return model.write_split(into, name, shards)[0]
    return model.write(into / f"{name}.gguf")


def data_of(path: Path) -> dict[str, tuple[Any, bytes]]:
    """Shape, type and bytes of every tensor of a model, of all its shards."""
    model = open_model(path)
    found: dict[str, tuple[Any, bytes]] = {}
    for name, (number, info) in model.tensors.items():
        shard = model.shards[number]
        content = shard.path.read_bytes()
        start = shard.header.data_offset + info.offset
        found[name] = ((info.shape, info.type), content[start : start + info.size_bytes])
    return found


@settings(max_examples=50, deadline=None)
@given(cases())
def test_a_graft_adds_the_head_and_a_strip_takes_it_away(case: Case) -> None:
    with folder() as here:
        base = write(case.base, here, "base", case.base_shards)
        donor = write(case.donor, here, "donor", case.donor_shards)
        plan = graft(base, donor, here / "out.gguf", layout=case.layout)
        out = here / plan.outputs[0]
        assert plan == plan_graft(base, donor, layout=case.layout, out_name="out.gguf")
        assert plan.size_bytes == sum((here / name).stat().st_size for name in plan.outputs)

        before, head, after = data_of(base), data_of(donor), data_of(out)
        assert {name: after[name] for name in before} == before
        added = {change.name: change.donor_name for change in plan.tensors}
        assert after.keys() - before.keys() == added.keys()
        assert all(after[name] == head[donor_name] for name, donor_name in added.items())

        old, new = read_file(base), read_file(out)
        assert (new.version, new.alignment) == (old.version, old.alignment)
        kept = [key for key in new.keys if key in old.keys]
        assert kept == [key for key in old.keys if key in new.keys]
        touched = {change.key for change in plan.keys}
        assert all(bytes(old.keys[key].raw) == bytes(new.keys[key].raw) for key in kept if key not in touched)
        assert touched & old.keys.keys() <= {f"{ARCH}.{n}" for n in ("block_count", "feed_forward_length")} | {
            f"split.{n}" for n in ("no", "count", "tensors.count")
        }

        assert graft(out, donor, here / "again.gguf", layout=case.layout).nothing_to_do
        stripped = strip(out, here / "stripped.gguf")
        assert data_of(here / stripped.outputs[0]) == before
        if case.layout == "shard" or not case.base_shards:
            originals = [shard.path.read_bytes() for shard in open_model(base).shards]
            assert [(here / name).read_bytes() for name in stripped.outputs] == originals


def mistakes(content: bytes, rng: random.Random) -> bytes:
    """A file as bad disks, cut downloads and bad tools leave it: most damage is to the header."""
    damaged = bytearray(content)
    header = min(len(content), 2500)
    match rng.randrange(5):
        case 0:
            return content[: rng.randrange(len(content))]
        case 1:
            damaged[rng.randrange(header)] ^= 1 << rng.randrange(8)
        case 2:
            at = rng.randrange(header)
            damaged[at : at + 8] = rng.choice([0, 1, 1 << 31, 1 << 63, (1 << 64) - 1]).to_bytes(8, "little")
        case 3:
            at = rng.randrange(header)
            del damaged[at : at + rng.randrange(1, 40)]
        case _:
            at = rng.randrange(header)
            damaged[at:at] = rng.randbytes(rng.randrange(1, 40))
    return bytes(damaged)


@settings(max_examples=200, deadline=10_000)
@given(st.integers(0, (1 << 64) - 1), st.sampled_from(["base", "donor", "both"]), st.sampled_from([16, 32, 64]))
def test_damage_is_refused_or_harmless(seed: int, which: str, alignment: int) -> None:
    """Every way in meets the same files; what is not refused must have given whole files."""
    rng = random.Random(seed)
    with folder() as here:
        base = Tiny(alignment=alignment).write(here / "base.gguf")
        donor = Tiny(heads=1, trunk=1).write(here / "donor.gguf")
        for path in (base, donor):
            if which in (path.stem, "both"):
                path.write_bytes(mistakes(path.read_bytes(), rng))
        done: list[str] = []
        works: list[Callable[[], tuple[str, ...]]] = [
            lambda: graft(base, donor, here / "grafted.gguf").outputs,
            lambda: graft(base, donor, here / "shards.gguf", layout="shard").outputs,
            lambda: extract(donor, here / "donor-again.gguf", kind="donor").outputs,
            lambda: extract(donor, here / "drafter.gguf", kind="drafter").outputs,
            lambda: strip(donor, here / "stripped.gguf").outputs,
        ]
        for work in works:
            try:
                done += work()
            except SlipstreamError as e:
                assert e.code in ALLOWED
                assert {"key", "tensor", "offset"} & e.details.keys(), e.message
                assert len(e.message) < 2000
        assert {path.name for path in here.iterdir()} == {"base.gguf", "donor.gguf", *done}
        for name in done:
            open_model(here / name)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_stops_everything_at_once(tmp_path: Path, missing: int) -> None:
    shards = Tiny(heads=1).write_split(tmp_path, "m", (5, 9))
    shards[missing].unlink()
    left = next(path for path in shards if path.exists())
    works: list[Callable[[], object]] = [
        lambda: plan_graft(left, left),
        lambda: graft(left, left, tmp_path / "o.gguf"),
        lambda: extract(left, tmp_path / "o.gguf", kind="donor"),
        lambda: strip(left, tmp_path / "o.gguf"),
    ]
    for work in works:
        with pytest.raises(SlipstreamError) as caught:
            work()
        assert caught.value.code is Code.NOT_FOUND
        assert shard_name("m", missing, 3) in caught.value.message
