"""Gives a model the MTP head of another file: base and donor become a new file, at the speed of the file system."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import __version__
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.compose import key_changes, out_names
from orchestrator.gguf.copying import Meter, sha256_of
from orchestrator.gguf.donor import donor_of
from orchestrator.gguf.model import GgufModel, open_model, shard_stem
from orchestrator.gguf.output import check_targets, write_files
from orchestrator.gguf.surgery import SplitLayout, Surgery, header_sha256, plan_surgery
from orchestrator.gguf.trunk import whole_model
from orchestrator.gguf.writer import NewFile, lay_out, verbatim
from orchestrator.schemas.gguf import GraftPlan, TensorChange

_SHA256 = re.compile(r"[0-9a-f]{64}")


def plan_graft(
    base: Path,
    donor: Path,
    *,
    layout: SplitLayout = "single",
    replace: bool = False,
    out_name: str | None = None,
    base_sha256: str | None = None,
    donor_sha256: str | None = None,
) -> GraftPlan:
    """What `graft` would do, tensor by tensor and key by key. Reads the donor once for its sha256, unless given.

    SlipstreamError not_found, invalid_gguf or graft_refused, which names the key or tensor.
    """
    surgery = _surgery(base, donor, layout=layout, replace=replace)
    name = out_name or f"{shard_stem(base.name)}-MTP.gguf"
    if surgery.has_nothing_to_do:
        return _nothing(surgery, name)
    donor_sha256 = donor_sha256 or _digests(surgery.donor.model, Meter(0))
    return _plan(surgery, surgery.files(name, _provenance(surgery, base_sha256, donor_sha256)))


def graft(
    base: Path,
    donor: Path,
    out: Path,
    *,
    layout: SplitLayout = "single",
    replace: bool = False,
    overwrite: bool = False,
    base_sha256: str | None = None,
    donor_sha256: str | None = None,
    hash_base: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GraftPlan:
    """Write base with the donor's head to `out`; with layout `shard`, or where nothing is to be done on a split base,
    to shards whose names follow from it.

    A base that has this head already is copied as it is. The sha256 of the base goes into the result where it is given
    or `hash_base` is set; of a split one, those of all shards with commas between them. `progress` gets bytes done and
    in all. SlipstreamError as `plan_graft`, conflict for an `out` that is an input or exists, disk_full.
    """
    surgery = _surgery(base, donor, layout=layout, replace=replace)
    of_base, of_donor = surgery.base.model, surgery.donor.model
    inputs = [shard.path for model in (of_base, of_donor) for shard in model.shards]
    if surgery.has_nothing_to_do:
        copies = [verbatim(s.path, n) for s, n in zip(of_base.shards, out_names(of_base, out.name), strict=True)]
        meter = Meter(sum(copy.size_bytes for copy in copies), progress)
        write_files(copies, out.parent, inputs=inputs, overwrite=overwrite, meter=meter)
        return _nothing(surgery, out.name)
    # Digests have one length: the result is laid out, and refused, before the first of them is known.
    unknown = _provenance(surgery, _unknown(of_base) if hash_base else base_sha256, donor_sha256 or _unknown(of_donor))
    layouts = [lay_out(file) for file in surgery.files(out.name, unknown)]
    check_targets([out.parent / file.name for file in layouts], inputs=inputs, overwrite=overwrite)
    to_hash = [*([of_base] if hash_base else []), *([] if donor_sha256 else [of_donor])]
    meter = Meter(sum(file.size_bytes for file in layouts) + sum(model.size_bytes for model in to_hash), progress)
    base_sha256 = _digests(of_base, meter) if hash_base else base_sha256
    files = surgery.files(out.name, _provenance(surgery, base_sha256, donor_sha256 or _digests(of_donor, meter)))
    write_files([lay_out(f) for f in files], out.parent, inputs=inputs, overwrite=overwrite, meter=meter)
    return _plan(surgery, files)


def _surgery(base: Path, donor: Path, *, layout: SplitLayout, replace: bool) -> Surgery:
    return plan_surgery(whole_model(open_model(base)), donor_of(open_model(donor)), layout=layout, replace=replace)


def _provenance(surgery: Surgery, base_sha256: str | None, donor_sha256: str) -> dict[str, str]:
    """Where the result is from: nothing of this machine, so that the same inputs give the same bytes anywhere."""
    said = {"base_header_sha256": header_sha256(surgery.base.model)}
    for key, digests, model in (
        ("base_sha256", base_sha256, surgery.base.model),
        ("donor_sha256", donor_sha256, surgery.donor.model),
    ):
        if digests is not None:
            parts = digests.split(",")
            if len(parts) != len(model.shards) or not all(map(_SHA256.fullmatch, parts)):
                raise SlipstreamError(
                    Code.INVALID_REQUEST,
                    f"{key} is {digests[:200]!r}, expected {len(model.shards)} sha256 of 64 hexadecimal digits",
                )
            said[key] = digests
    return said | {"tool_version": __version__}


def _unknown(model: GgufModel) -> str:
    return ",".join("0" * 64 for _ in model.shards)


def _digests(model: GgufModel, meter: Meter) -> str:
    return ",".join(sha256_of(shard.path, meter) for shard in model.shards)


def _plan(surgery: Surgery, files: Sequence[NewFile]) -> GraftPlan:
    header, tensors = surgery.base.header, surgery.base.model.tensors
    keys = key_changes(header, files[0])
    touched = sum(change.before is not None for change in keys)
    changes = tuple(
        TensorChange(
            name=new.name,
            donor_name=info.name,
            type=info.type.name,
            shape=info.shape,
            size_bytes=info.size_bytes,
            replaces=new.name in tensors,
        )
        for info, new in surgery.head
        if not surgery.is_there
    )
    total = sum(len(file.tensors) for file in files)
    return GraftPlan(
        architecture=surgery.base.arch.name,
        base_blocks=surgery.base.depth.trunk,
        head_blocks=len(surgery.donor.head.blocks),
        keys=keys,
        tensors=changes,
        untouched_keys=len(header.keys) - touched,
        untouched_tensors=total - len(changes),
        outputs=tuple(file.name for file in files),
        size_bytes=sum(lay_out(file).size_bytes for file in files),
        warnings=surgery.warnings,
    )


def _nothing(surgery: Surgery, name: str) -> GraftPlan:
    model = surgery.base.model
    return GraftPlan(
        architecture=surgery.base.arch.name,
        base_blocks=surgery.base.depth.trunk,
        head_blocks=len(surgery.donor.head.blocks),
        keys=(),
        tensors=(),
        untouched_keys=len(model.header.keys),
        untouched_tensors=len(model.tensors),
        outputs=tuple(out_names(model, name)),
        size_bytes=model.size_bytes,
        nothing_to_do=True,
        warnings=surgery.warnings,
    )
