"""What a graft changes: keys from the tensors, arrays from the donor, tensors renumbered. Nothing is written here."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.gguf.arrays import extended
from orchestrator.gguf.compose import GRAFT_PREFIX, Group, kept_groups, merged, new_files, with_integer
from orchestrator.gguf.copying import CopyRange, Sources, same_bytes
from orchestrator.gguf.donor import Donor
from orchestrator.gguf.fit import check_fit, check_tensors
from orchestrator.gguf.head import block_name, split_name
from orchestrator.gguf.header import Array, KeyValue, TensorInfo
from orchestrator.gguf.model import GgufModel
from orchestrator.gguf.reader import MAX_NAME_BYTES
from orchestrator.gguf.source import FileBytes
from orchestrator.gguf.trunk import BLOCK_COUNT, HEAD_COUNT, WholeModel, refused
from orchestrator.gguf.types import ValueType
from orchestrator.gguf.writer import NewFile, NewTensor, entry, tensor_of

SplitLayout = Literal["single", "shard"]
_ROUTER = "ffn_gate_inp.weight"
_LEADING_DENSE = "leading_dense_block_count"
# Without them llama.cpp asserts, or builds a block that routes nothing.
_NEEDED_FOR_EXPERTS = ("expert_count", "expert_used_count")


@dataclass(frozen=True, eq=False)
class Surgery:
    """A graft that can be done: everything but the provenance, which needs digests of whole files."""

    base: WholeModel
    donor: Donor
    layout: SplitLayout
    edits: Mapping[str, KeyValue]
    head: tuple[tuple[TensorInfo, NewTensor], ...]
    is_there: bool
    warnings: tuple[str, ...]

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the base is the result."""
        return self.is_there and not self.edits and (self.layout == "shard" or len(self.base.model.shards) == 1)

    def files(self, name: str, provenance: Mapping[str, str]) -> list[NewFile]:
        """The files of the result."""
        said = {
            f"{GRAFT_PREFIX}{key}": entry(f"{GRAFT_PREFIX}{key}", ValueType.STRING, value)
            for key, value in provenance.items()
        }
        return new_files(self.base.header, self._groups(), {**self.edits, **said}, name)

    def _groups(self) -> list[Group]:
        if self.is_there:
            groups = kept_groups(self.base.model)
        else:
            removed = frozenset(t.name for t in self.base.head.tensors) if self.base.head else frozenset()
            groups = kept_groups(self.base.model, removed)
            groups.append(Group(None, tuple(new for _, new in self.head)))
        return groups if self.layout == "shard" else merged(groups)


def plan_surgery(base: WholeModel, donor: Donor, *, layout: SplitLayout, replace: bool) -> Surgery:
    """What to do to give the base the donor's head. SlipstreamError graft_refused says why it cannot be."""
    warnings = check_fit(base, donor)
    edits = {key.name: key for key in _edits(base, donor)}
    shared = _value_after(base, edits, "expert_shared_count")
    check_tensors(donor, base, has_shared_expert=isinstance(shared, int) and shared > 0)
    head = tuple(_renumbered(base, donor))
    is_there = base.head is not None and _is_same_head(base, head)
    if base.head is not None and (not is_there or edits):
        if not replace:
            raise refused(
                f"{base.name} has another MTP head already: {len(base.head.tensors)} tensors in "
                f"{', '.join(f'blk.{block}' for block in base.head.blocks)}",
                hint="--replace takes it out for the donor's",
                tensor=base.head.tensors[0].name,
            )
        is_there = False
        new = {tensor.name for _, tensor in head}
        if left := [t.name for t in base.head.tensors if t.name not in new]:
            warnings.append(f"tensors of the old head that go without a new one: {', '.join(left)}")
    return Surgery(base, donor, layout, edits, head, is_there, tuple(warnings))


def header_sha256(model: GgufModel) -> str:
    """Digest over everything before the tensor data, of all shards in turn: what tells a model from most others."""
    digest = hashlib.sha256()
    for shard in model.shards:
        with FileBytes(shard.path) as file:
            digest.update(file.read_at(0, shard.header.header_bytes))
    return digest.hexdigest()


def _edits(base: WholeModel, donor: Donor) -> Iterator[KeyValue]:
    """The keys that change, and those that the base lacks."""
    heads = len(donor.head.blocks)
    header = base.header
    counts = {BLOCK_COUNT: base.depth.trunk + heads, HEAD_COUNT: heads}
    for name, value in counts.items():
        new = with_integer(header, header.arch_key(name), value)
        if new.name not in header.keys or header.keys[new.name].raw != new.raw:
            yield new
    yield from extended(header, base.depth, donor.header, donor.head.blocks, base.arch)
    if donor.has_experts:
        yield from _expert_keys(base, donor)


def _expert_keys(base: WholeModel, donor: Donor) -> Iterator[KeyValue]:
    """What a head that routes experts needs to have said, where a dense base says nothing of experts."""
    prefix = base.header.arch_key("expert_")
    for key in donor.header.keys.values():
        if key.name.startswith(prefix) and key.name not in base.header.keys:
            value = key.value
            if isinstance(value, Array) and donor.head.blocks[0] != base.depth.trunk:
                raise refused(
                    f"{base.name} lacks {key.name}, and {donor.name} has it for a trunk of {donor.head.blocks[0]} "
                    f"blocks instead of {base.depth.trunk}",
                    key=key.name,
                )
            yield key
    for name in _NEEDED_FOR_EXPERTS:
        if (key_name := base.header.arch_key(name)) not in base.header.keys and key_name not in donor.header.keys:
            raise refused(
                f"the head of {donor.name} routes experts, but neither it nor {base.name} says {key_name}", key=key_name
            )
    yield from _leading_dense(base)


def _leading_dense(base: WholeModel) -> Iterator[KeyValue]:
    """How many blocks route no experts before the first that does; the head's block must not be one of them."""
    key, trunk = base.header.arch_key(_LEADING_DENSE), base.depth.trunk
    said = base.header.integer(key)
    if said is not None and said > trunk:
        raise refused(
            f"{key} of {base.name} is {said}, expected {trunk} at most: the head's block would have no experts", key=key
        )
    if key not in base.header.keys and base.arch.head_is_moe:
        routed = (b for b in range(trunk) if block_name(b, _ROUTER) in base.model.tensors)
        if dense := next(routed, trunk):
            yield entry(key, ValueType.UINT32, dense)


def _value_after(base: WholeModel, edits: Mapping[str, KeyValue], name: str) -> object:
    key = base.header.arch_key(name)
    return edits[key].value if key in edits else base.header.value(key)


def _renumbered(base: WholeModel, donor: Donor) -> Iterator[tuple[TensorInfo, NewTensor]]:
    """The head's tensors under the block numbers that follow the base's trunk (field case 17)."""
    shift = base.depth.trunk - donor.head.blocks[0]
    for info in donor.head.tensors:
        block, rest = split_name(info.name)
        assert block is not None
        name = block_name(block + shift, rest)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise refused(
                f"{name!r} is too long for a tensor, expected {MAX_NAME_BYTES} bytes at most", tensor=info.name
            )
        shard = donor.model.shards[donor.model.tensors[info.name][0]]
        yield info, tensor_of(shard.path, shard.header, info, name)


def _is_same_head(base: WholeModel, head: tuple[tuple[TensorInfo, NewTensor], ...]) -> bool:
    """Whether the base has exactly these tensors, byte for byte."""
    assert base.head is not None
    ours = {tensor.name: tensor for tensor in base.head.tensors}
    theirs = {new.name: new for _, new in head}
    if {n: (t.shape, t.type) for n, t in ours.items()} != {n: (t.shape, t.type) for n, t in theirs.items()}:
        return False
    sources = Sources()
    try:
        for name, new in theirs.items():
            shard = base.model.shards[base.model.tensors[name][0]]
            own = tensor_of(shard.path, shard.header, ours[name])
            if not same_bytes(sources, CopyRange(new.source, new.offset, 0, new.size_bytes), own.source, own.offset):
                return False
    finally:
        sources.close()
    return True
