"""`slipstream plan`, `graft`, `extract` and `strip`: work on plain files, without an orchestrator."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.byte_progress import shown_bytes
from orchestrator.cli.invocation import Output
from orchestrator.cli.options import Json
from orchestrator.gguf import extract as extraction
from orchestrator.gguf import graft as grafting
from orchestrator.schemas import Extraction, GraftPlan, KeyChange, TensorChange
from orchestrator.units import in_bytes


class SplitLayout(StrEnum):
    """Where the head goes."""

    SINGLE = "single"
    SHARD = "shard"


class HeadKind(StrEnum):
    """What a head is taken out as."""

    DONOR = "donor"
    DRAFTER = "drafter"


Base = Annotated[Path, typer.Argument(help="GGUF file of the model; of a split one, any shard.")]
Donor = Annotated[Path, typer.Argument(help="GGUF file with an MTP head: a head alone, a drafter, or a whole model.")]
File = Annotated[Path, typer.Argument(help="GGUF file with an MTP head; of a split one, any shard.")]
Out = Annotated[Path, typer.Argument(help="File to write.")]
Layout = Annotated[
    SplitLayout, typer.Option("--layout", help="One file, or the head as one more shard beside the base's.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Take out the head that the base has.")]
Force = Annotated[bool, typer.Option("--force", help="Write over OUT if it exists; never over an input.")]


def plan(
    base: Base, donor: Donor, layout: Layout = SplitLayout.SINGLE, replace: Replace = False, as_json: Json = False
) -> None:
    """Say what a graft would do: every key and tensor it changes. Nothing is written."""
    output = Output(as_json)
    _show_plan(output, grafting.plan_graft(base, donor, layout=layout.value, replace=replace), "would write")


def graft(
    base: Base,
    donor: Donor,
    out: Out,
    layout: Layout = SplitLayout.SINGLE,
    replace: Replace = False,
    force: Force = False,
    hash_base: Annotated[bool, typer.Option("--hash", help="Note the sha256 of BASE in OUT; reads BASE once.")] = False,
    as_json: Json = False,
) -> None:
    """Write BASE with the MTP head of DONOR to OUT, at the speed of the file system."""
    output = Output(as_json)
    with shown_bytes(output, f"grafting {out.name}") as heard:
        done = grafting.graft(
            base,
            donor,
            out,
            layout=layout.value,
            replace=replace,
            overwrite=force,
            hash_base=hash_base,
            progress=heard,
        )
    _show_plan(output, done, "wrote")


def extract(
    file: File,
    out: Out,
    kind: Annotated[
        HeadKind,
        typer.Option(
            "--as", help="A donor is the head alone, to be grafted; a drafter is what `-md` of llama-server takes."
        ),
    ] = HeadKind.DONOR,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the MTP head of FILE to OUT."""
    output = Output(as_json)
    with shown_bytes(output, f"extracting {out.name}") as heard:
        done = extraction.extract(file, out, kind=kind.value, overwrite=force, progress=heard)
    _show_extraction(output, done)


def strip(file: File, out: Out, force: Force = False, as_json: Json = False) -> None:
    """Write FILE without its MTP head to OUT."""
    output = Output(as_json)
    with shown_bytes(output, f"stripping {out.name}") as heard:
        done = extraction.strip(file, out, overwrite=force, progress=heard)
    _show_extraction(output, done)


def _show_plan(output: Output, plan: GraftPlan, verb: str) -> None:
    if output.is_json:
        output.emit(plan)
        return
    if plan.nothing_to_do:
        output.say("the base has exactly this head: nothing to do but a copy")
    else:
        _show_keys(output, plan.keys)
        _show_tensors(output, plan.tensors)
        output.say(
            f"{plan.architecture}: {plan.base_blocks} trunk blocks and {plan.head_blocks} of the head; "
            f"{plan.untouched_keys} keys and {plan.untouched_tensors} tensors stay as they are"
        )
    for warning in plan.warnings:
        output.warn(f"warning: {warning}")
    _show_outputs(output, verb, plan.outputs, plan.size_bytes)


def _show_extraction(output: Output, done: Extraction) -> None:
    if output.is_json:
        output.emit(done)
        return
    _show_keys(output, done.keys)
    output.say(
        f"{done.architecture}: {done.kind} with {done.tensors} tensors; the model has {done.trunk_blocks} trunk blocks "
        f"and {done.head_blocks} of the head"
    )
    _show_outputs(output, "wrote", done.outputs, done.size_bytes)


def _show_keys(output: Output, keys: tuple[KeyChange, ...]) -> None:
    rows = [(key.key, key.type, key.before or "-", key.after or "-") for key in keys]
    output.table(("KEY", "TYPE", "BEFORE", "AFTER"), rows, elastic=(2, 3))
    output.say("")


def _show_tensors(output: Output, tensors: tuple[TensorChange, ...]) -> None:
    rows = [
        (
            tensor.name,
            tensor.donor_name,
            tensor.type,
            " x ".join(map(str, tensor.shape)),
            in_bytes(tensor.size_bytes),
            "replaces the base's" if tensor.replaces else "",
        )
        for tensor in tensors
    ]
    output.table(("TENSOR", "IN THE DONOR", "TYPE", "SHAPE", "SIZE", ""), rows)
    output.say("")


def _show_outputs(output: Output, verb: str, names: tuple[str, ...], size_bytes: int) -> None:
    for name in names:
        output.say(f"{verb} {name}")
    output.say(f"{in_bytes(size_bytes)} in all" if len(names) > 1 else in_bytes(size_bytes), "dim")
