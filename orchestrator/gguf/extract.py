"""The reverse of a graft: the head out of a model, alone or as a drafter, and the model without its head."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from orchestrator.gguf.architectures import architecture_of
from orchestrator.gguf.arrays import Depth, shortened
from orchestrator.gguf.compose import kept_groups, key_changes, merged, new_files, with_integer
from orchestrator.gguf.copying import Meter
from orchestrator.gguf.donor import DONOR_TOKENS, DONOR_TOKENS_SHA256, Donor, donor_of, tokens_sha256
from orchestrator.gguf.head import SHARED_HEAD_HEAD, split_name
from orchestrator.gguf.header import Header, KeyValue
from orchestrator.gguf.model import GgufModel, open_model
from orchestrator.gguf.output import write_files
from orchestrator.gguf.tokenizer import TOKENS
from orchestrator.gguf.trunk import BLOCK_COUNT, HEAD_COUNT, refused, whole_model
from orchestrator.gguf.types import ValueType
from orchestrator.gguf.writer import NewFile, entry, lay_out
from orchestrator.schemas.gguf import Extraction

Progress = Callable[[int, int], None]
Edits = dict[str, KeyValue | None]
_TOKENIZER_PREFIX = "tokenizer."
_OUTPUT = "output.weight"


def extract(
    source: Path,
    out: Path,
    *,
    kind: Literal["donor", "drafter"],
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Extraction:
    """Write the MTP head of a file to a file of its own.

    A donor has the head's tensors, and of the tokenizer a digest: it can be grafted, but llama.cpp cannot load it. A
    drafter has the tokenizer and what is in no block too, so that `-md` loads it (as convert_hf_to_gguf.py --mtp
    makes it). SlipstreamError not_found, invalid_gguf, graft_refused, conflict, disk_full.
    """
    donor = donor_of(open_model(source))
    header, names = donor.header, {tensor.name for tensor in donor.head.tensors}
    # The head's block numbers count the blocks before it, though they are not in this file.
    depth = Depth(donor.head.blocks[0], len(donor.head.blocks))
    edits = _counts(header, depth)
    if kind == "drafter":
        _check_drafter(donor)
        names |= {name for name in donor.model.tensors if split_name(name)[0] is None}
    else:
        edits |= _without_tokenizer(header)
    groups = merged(kept_groups(donor.model, frozenset(donor.model.tensors.keys() - names)))
    files = new_files(header, groups, edits, out.name)
    _write(files, donor.model, out.parent, overwrite=overwrite, progress=progress)
    return _told(kind, header, depth, files)


def strip(source: Path, out: Path, *, overwrite: bool = False, progress: Progress | None = None) -> Extraction:
    """Write a model without its MTP head, and without what a graft has noted in it; the shards of a split one to names
    that follow from `out`. A model that announces a head it lacks announces none in the copy.

    SlipstreamError not_found, invalid_gguf, graft_refused, conflict, disk_full.
    """
    whole = whole_model(open_model(source))
    if not whole.depth.announced:
        raise refused(f"{whole.name} has no MTP head, and announces none", key=whole.header.arch_key(HEAD_COUNT))
    edits = _counts(whole.header, Depth(whole.depth.trunk, 0))
    edits |= {key.name: key for key in shortened(whole.header, whole.depth, whole.arch)}
    removed = frozenset(tensor.name for tensor in whole.head.tensors) if whole.head else frozenset()
    files = new_files(whole.header, kept_groups(whole.model, removed), edits, out.name)
    _write(files, whole.model, out.parent, overwrite=overwrite, progress=progress)
    return _told("trunk", whole.header, whole.depth, files)


def _counts(header: Header, depth: Depth) -> Edits:
    blocks, heads = header.arch_key(BLOCK_COUNT), header.arch_key(HEAD_COUNT)
    return {
        blocks: with_integer(header, blocks, depth.blocks),
        heads: with_integer(header, heads, depth.announced) if depth.announced else None,
    }


def _without_tokenizer(header: Header) -> Edits:
    edits: Edits = {key: None for key in header.keys if key.startswith(_TOKENIZER_PREFIX)}
    if (tokens := header.array(TOKENS)) is not None:
        edits[DONOR_TOKENS] = entry(DONOR_TOKENS, ValueType.UINT32, tokens.count)
        edits[DONOR_TOKENS_SHA256] = entry(DONOR_TOKENS_SHA256, ValueType.STRING, tokens_sha256(tokens))
    return edits


def _check_drafter(donor: Donor) -> None:
    arch = architecture_of(donor.model.architecture)
    if not arch.drafts_with_mtp:
        raise refused(f"the pinned llama.cpp cannot draft with an MTP head of {arch.name}", key="general.architecture")
    needed = set(arch.drafter_tensors)
    if arch.own_output_will_do and donor.head.has(SHARED_HEAD_HEAD):
        needed.discard(_OUTPUT)
    if missing := sorted(needed - donor.model.tensors.keys()):
        raise refused(
            f"{donor.name} lacks {', '.join(missing)}, which a drafter of {arch.name} needs beside the head",
            hint="a head alone can be grafted: slipstream graft BASE DONOR OUT",
            tensor=missing[0],
        )


def _write(
    files: Sequence[NewFile], model: GgufModel, folder: Path, *, overwrite: bool, progress: Progress | None
) -> None:
    layouts = [lay_out(file) for file in files]
    meter = Meter(sum(layout.size_bytes for layout in layouts), progress)
    inputs = [shard.path for shard in model.shards]
    write_files(layouts, folder, inputs=inputs, overwrite=overwrite, meter=meter)


def _told(
    kind: Literal["donor", "drafter", "trunk"], before: Header, depth: Depth, files: Sequence[NewFile]
) -> Extraction:
    return Extraction(
        kind=kind,
        architecture=before.architecture,
        trunk_blocks=depth.trunk,
        head_blocks=depth.announced,
        keys=key_changes(before, files[0]),
        tensors=sum(len(file.tensors) for file in files),
        outputs=tuple(file.name for file in files),
        size_bytes=sum(lay_out(file).size_bytes for file in files),
    )
