"""Whether a drafter file fits the model it is to draft for, by the speculative type."""

from collections.abc import Iterator

from orchestrator.gguf.architectures import ANY_NUMBER
from orchestrator.gguf.contents import Contents
from orchestrator.gguf.head import SHARED_HEAD_HEAD
from orchestrator.gguf.problem import error, warning
from orchestrator.gguf.problems import head_problems, model_problems
from orchestrator.gguf.tokenizer import compare_tokenizers, shown
from orchestrator.schemas.gguf import Problem

MTP, SIMPLE = "draft-mtp", "draft-simple"
# Types with a drafter of an architecture of its own.
DRAFTER_ARCHITECTURES = {"draft-eagle3": "eagle3", "draft-dflash": "dflash", "draft-dspark": "dflash"}
_ASSISTANT, _ASSISTED = "gemma4-assistant", "gemma4"
_WITH_STREAMS = frozenset({"deepseek4", "qwen4exp"})


def pair_problems(target: Contents, drafter: Contents, types: tuple[str, ...]) -> Iterator[Problem]:
    """What a drafter lacks to draft for a target with these types. Nothing where shards of it are missing."""
    for name in types if not drafter.missing else ():
        if name == MTP:
            yield from _mtp(target, drafter)
        elif name == SIMPLE:
            yield from _simple(target, drafter)
        elif name in DRAFTER_ARCHITECTURES:
            yield from _of_its_own(target, drafter, name)


def _mtp(target: Contents, drafter: Contents) -> Iterator[Problem]:
    if drafter.role == "donor":
        yield error(
            "donor_not_loadable",
            f"{drafter.header.source_name} has the tensors of a head alone, which no server loads as a drafter: "
            f"graft it onto the model, or extract the head as a drafter, with {_some_of(drafter)}",
        )
        return
    is_assistant = drafter.header.architecture == _ASSISTANT
    if drafter.head is None and not is_assistant:
        yield error("no_head", f"{drafter.header.source_name} has no MTP head, which draft-mtp needs of a drafter")
        return
    expected = _ASSISTED if is_assistant else drafter.header.architecture
    if target.header.architecture != expected:
        yield error(
            "architecture_differs",
            f"the drafter is made for {shown(expected)}, and the model is {shown(target.header.architecture)}",
        )
    yield from model_problems(drafter)
    yield from (_as_error(problem) for problem in head_problems(drafter))
    if drafter.trunk and not is_assistant:
        yield warning("drafter_has_trunk", f"{drafter.header.source_name} is a whole model, loaded for its head alone")
    elif not is_assistant and (missing := _missing(drafter)):
        yield error("missing_drafter_tensor", f"{drafter.header.source_name} lacks {', '.join(missing)}")
    given, needed = _width_out(drafter), _width_out(target)
    if given != needed:
        yield error(
            "width_differs", f"the drafter takes rows {given} wide, the model gives {needed}: llama-server aborts"
        )
    yield from compare_tokenizers(target.header, drafter.header)


def _simple(target: Contents, drafter: Contents) -> Iterator[Problem]:
    if drafter.role != "model":
        yield error(
            "wrong_drafter",
            f"{SIMPLE} needs a whole model as drafter; {drafter.header.source_name} is of the role {drafter.role}",
        )
        return
    yield from model_problems(drafter)
    yield from compare_tokenizers(target.header, drafter.header, draft_simple=True)


def _of_its_own(target: Contents, drafter: Contents, type_: str) -> Iterator[Problem]:
    expected = DRAFTER_ARCHITECTURES[type_]
    if drafter.header.architecture != expected:
        yield error(
            "wrong_drafter",
            f"{type_} needs a drafter of the architecture {expected}; {drafter.header.source_name} is "
            f"{shown(drafter.header.architecture)!r}",
        )
        return
    layers = drafter.header.array(drafter.header.arch_key("target_layers"))
    if layers is None or not layers.type.is_integer or not 1 <= len(layers) <= ANY_NUMBER:
        yield error(
            "target_layers_missing", f"{drafter.header.source_name} does not list target_layers, which it reads"
        )
    elif (last := max(layers.values())) > (blocks := _trunk_blocks(target)):
        yield error(
            "target_layers_differ",
            f"the drafter reads block {last} of the model, which has {blocks}: llama-server aborts",
        )
    hidden = drafter.integer("target_hidden_size")
    if hidden is not None and hidden != (width := target.integer("embedding_length")):
        yield error("width_differs", f"the drafter is made for a model {hidden} wide, and this one is {width} wide")
    yield from compare_tokenizers(target.header, drafter.header)


def _trunk_blocks(target: Contents) -> int:
    """Blocks by the keys, which alone count those without tensors."""
    return (target.announced_blocks or len(target.trunk)) - target.announced_heads


def _missing(drafter: Contents) -> list[str]:
    architecture = drafter.architecture
    own = architecture.own_output_will_do and drafter.head is not None and drafter.head.has(SHARED_HEAD_HEAD)
    return [
        name
        for name in architecture.drafter_tensors
        if name not in drafter.tensors and not (own and name == "output.weight")
    ]


def _some_of(drafter: Contents) -> str:
    return ", ".join(_missing(drafter)) or "the tensors around it"


def _as_error(problem: Problem) -> Problem:
    return problem.model_copy(update={"severity": "error"}) if problem.code == "mtp_unsupported" else problem


def _width_out(contents: Contents) -> int | None:
    """Width of the rows that the trunk gives the head (llama_model_n_embd_out)."""
    width = contents.integer("embedding_length_out") or contents.integer("embedding_length")
    if width is None or contents.header.architecture not in _WITH_STREAMS:
        return width
    return width * (contents.integer("hyper_connection.count") or 1)
