"""What would make llama-server abort, not load, or silently not draft, found before it is started.

Sources: common/speculative.cpp (which type needs which drafter), src/models/*.cpp (what a head needs). The errors are
shown on the real server by tests/integration/gguf/test_preflight.py.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.contents import Contents, contents_of_file
from orchestrator.gguf.known import PINNED_BUILD
from orchestrator.gguf.model import shard_names
from orchestrator.gguf.pairing import DRAFTER_ARCHITECTURES, MTP, SIMPLE, pair_problems
from orchestrator.gguf.problem import error, warning
from orchestrator.gguf.problems import file_problems, head_problems, loads_unused_head, model_problems
from orchestrator.gguf.vocabulary import repeated_tokens
from orchestrator.schemas.gguf import Problem

# What another build of llama-server may see differently: there these are warnings.
_PIN_BOUND = frozenset(
    {"unknown_architecture", "unknown_tokenizer", "unknown_pre_tokenizer", "unknown_tensor_type", "unknown_head_tensor"}
    | {"mtp_unsupported", "too_many_head_blocks", "head_not_moe", "head_missing", "missing_head_tensor"}
    | {"blocks_disagree", "block_count_invalid", "array_length", "merges_missing", "vocabulary_missing"}
    | {"vocabulary_repeats", "vocabulary_size_disagrees", "width_disagrees"}
    | {"missing_drafter_tensor", "wrong_drafter", "target_layers_missing"}
)
# What keeps a head from drafting, though most files with it load.
_OF_A_HEAD_IN_USE = frozenset({"missing_head_tensor", "head_not_moe"})
_WHAT_IT_IS = {
    "drafter": "a drafter, which has no trunk",
    "donor": "a donor, the tensors of a head alone: graft it onto a model",
    "mmproj": "a projector for images or sound (mmproj)",
    "vocabulary": "a vocabulary without tensors",
    "adapter": "an adapter (LoRA)",
    "imatrix": "an importance matrix",
    "other": "no model: it has neither token_embd.weight nor a block",
}


def preflight(
    model: Path,
    drafter: Path | None = None,
    spec_types: tuple[str, ...] = (),
    n_max: int | None = None,
    *,
    is_pinned: bool = True,
) -> tuple[Problem, ...]:
    """Problems of a model as it is to be served: with a drafter (`-md`), speculative types and the longest draft.

    Without types nothing drafts (`--spec-type none`). With `is_pinned` false the llama-server is of another build than
    the pin, and what its build decides is a warning. Files are judged by their headers, never raised about. No error
    is no promise: the weights are not looked at.
    """
    types = tuple(name for name in spec_types if name != "none")
    problems: list[Problem] = []
    target = _opened(model, "the model", problems)
    helper = _opened(drafter, "the drafter", problems) if drafter else None
    if target is not None:
        problems += _of_model(target, types, drafter is not None)
    if target is not None and helper is not None and target.role == "model":
        problems += pair_problems(target, helper, types)
    problems += _of_settings(types, n_max, drafter is not None)
    if (drafting := helper if drafter else target) is not None and MTP in types:
        problems += _of_length(drafting, n_max)
    return tuple(dict.fromkeys(p if is_pinned else _of_another_build(p) for p in problems))


def unfit(errors: Sequence[Problem], prefix: str = "") -> SlipstreamError:
    """What a model is refused with that has these errors."""
    return SlipstreamError(
        Code.PREFLIGHT_FAILED,
        prefix + "; ".join(problem.message for problem in errors),
        details={"problems": [problem.model_dump() for problem in errors]},
    )


def _of_another_build(problem: Problem) -> Problem:
    if problem.severity == "warning" or problem.code not in _PIN_BOUND:
        return problem
    return warning(problem.code, f"{problem.message} (as of llama.cpp b{PINNED_BUILD}; this llama-server is another)")


def _opened(path: Path, what: str, problems: list[Problem]) -> Contents | None:
    try:
        contents = contents_of_file(path)
    except SlipstreamError as e:
        code = "unknown_tensor_type" if "tensor_type" in e.details else e.code.value
        problems.append(error(code, f"{what}: {e.message}"))
        return None
    problems += file_problems(contents)
    problems += repeated_tokens(contents.header)
    if contents.is_split and path.name != (first := shard_names(path.name)[0]):
        problems.append(error("not_first_shard", f"{what}: llama.cpp opens a split file by its first shard, {first}"))
    return contents


def _of_model(target: Contents, types: tuple[str, ...], has_drafter: bool) -> Iterator[Problem]:
    if target.role != "model":
        yield error("not_a_model", f"{target.header.source_name} is {_WHAT_IT_IS[target.role]}")
        return
    drafts = MTP in types and not has_drafter
    for problem in (*model_problems(target), *head_problems(target)):
        if not drafts and problem.code in _OF_A_HEAD_IN_USE and loads_unused_head(target):
            yield warning(problem.code, problem.message)
        elif drafts and problem.code in ("head_missing", "mtp_unsupported"):
            yield error(problem.code, f"{problem.message}; draft-mtp would abort llama-server")
        elif drafts or problem.code not in ("mtp_unsupported", "too_many_head_blocks"):
            yield problem
    if drafts and target.head is None and not target.announced_heads and not target.missing:
        yield error(
            "no_head",
            f"{target.header.source_name} has no MTP head, which draft-mtp needs: graft one, or give one as drafter",
        )


def _of_settings(types: tuple[str, ...], n_max: int | None, has_drafter: bool) -> Iterator[Problem]:
    drafting = [name for name in types if name in (MTP, SIMPLE, *DRAFTER_ARCHITECTURES)]
    if has_drafter and not drafting:
        what = ", ".join(types) or "none"
        yield warning("drafter_unused", f"the drafter is loaded, and no type of {what} drafts with it")
    if len(drafting) > 1:
        yield error(
            "drafters_conflict", f"{' and '.join(drafting)} would share one drafter; llama-server has room for one"
        )
    for name in drafting:
        if name != MTP and not has_drafter:
            kind = DRAFTER_ARCHITECTURES.get(name)
            what = f"a drafter of the architecture {kind}" if kind else "a smaller model of the same vocabulary"
            yield error("drafter_missing", f"{name} needs {what} as drafter, and none is given: nothing would draft")
    if drafting and n_max == 0:
        yield error("no_drafts", f"the longest draft is 0 tokens (n_max 0): {', '.join(drafting)} would never draft")


def _of_length(drafting: Contents, n_max: int | None) -> Iterator[Problem]:
    blocks = len(drafting.head.blocks) if drafting.head else 0
    if 1 < blocks <= drafting.architecture.max_head_blocks and (n_max or 0) > blocks:
        yield warning(
            "n_max_clamped",
            f"n_max is {n_max}, but each of the head's {blocks} blocks drafts one token: drafts end at {blocks} tokens",
        )
