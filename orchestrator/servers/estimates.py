"""What a server of some files holds in all, told from their headers and its flags."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from orchestrator.gguf.contents import Contents, contents_of_file
from orchestrator.gguf.memory import Setup, estimate_memory
from orchestrator.gguf.types import TensorType
from orchestrator.schemas import FlagValue
from orchestrator.servers.files import Resolved, Stamp
from orchestrator.servers.spread import Load, whole_number

_MIB = 1 << 20
# Of a llama-server beside what it loads, measured on the pinned build: libraries, threads, graphs of the toys.
_PROCESS_BYTES = 40 * _MIB
# Nodes that a context sets aside for its graphs grow with the batch where states are computed in it
# (llama_context::graph_max_nodes), at the default of 512 tokens.
_STATE_GRAPH_BYTES = 32 * _MIB
# tools/server/server.cpp: --parallel -1 becomes 4 with one key-value buffer for all.
_AUTO_SEQUENCES = 4
_DEFAULT_UBATCH_TOKENS = 512
_DEFAULT_DRAFT_TOKENS = 3
_KEPT_ESTIMATES = 256
_EXPERTS = "_exps."
_EMBEDDINGS = "token_embd.weight"
_NOTHING = Load()


def estimated(resolved: Resolved, flags: Mapping[str, FlagValue]) -> tuple[Load, int]:
    """The load, and bytes of the process beside it.

    Reads headers, once for each state of the files: not for the event loop.
    """
    setup = _setup(flags)
    drafts_itself = resolved.drafter is None and "draft-mtp" in resolved.spec.speculation.type.split(",")
    load, process_bytes = _NOTHING, _PROCESS_BYTES
    for number, stamp in enumerate(resolved.stamps):
        if number:
            setup = _of_drafter(setup, flags)
        part, graphs, setup = _load(stamp, setup, bool(number) or drafts_itself)
        load, process_bytes = _sum(load, part), process_bytes + graphs
    return load, process_bytes


def _sum(target: Load, drafter: Load) -> Load:
    return replace(
        target,
        weights=target.weights + drafter.weights,
        experts=target.experts + drafter.experts,
        embeddings=target.embeddings + drafter.embeddings,
        is_tied=target.is_tied or (target == _NOTHING and drafter.is_tied),
        cache=target.cache + drafter.cache,
        compute=target.compute + drafter.compute,
        blocks=target.blocks or drafter.blocks,
    )


def _setup(flags: Mapping[str, FlagValue]) -> Setup:
    def number(name: str, default: int) -> int:
        found = whole_number(flags.get(name))
        return default if found is None else found

    sequences = number("parallel", -1)
    count = _AUTO_SEQUENCES if sequences < 1 else sequences
    return Setup(
        # --kv-unified-per-slot sizes the context where nothing else does.
        ctx_tokens=number("ctx-size", 0) or number("kv-unified-per-slot", 0) * count,
        sequences=count,
        unified=sequences < 1 or bool(flags.get("kv-unified", False)),
        draft_tokens=number("spec-draft-n-max", _DEFAULT_DRAFT_TOKENS),
        batch_tokens=number("ubatch-size", _DEFAULT_UBATCH_TOKENS),
        key_type=_type(flags.get("cache-type-k")),
        value_type=_type(flags.get("cache-type-v")),
    )


def _of_drafter(setup: Setup, flags: Mapping[str, FlagValue]) -> Setup:
    """A drafter has the target's context (common_speculative_init_result), and never steps back."""
    key, value = _type(flags.get("spec-draft-type-k")), _type(flags.get("spec-draft-type-v"))
    return replace(setup, draft_tokens=0, key_type=key, value_type=value)


def _type(name: FlagValue | None) -> TensorType:
    known = {t.name.lower(): t for t in TensorType}
    return known.get(str(name).lower(), TensorType.F16)


@lru_cache(maxsize=_KEPT_ESTIMATES)
def _load(stamp: Stamp, setup: Setup, has_head: bool) -> tuple[Load, int, Setup]:
    """Load of one file, bytes of its graphs, and the setup it got.

    The head in a target's own file is loaded for draft-mtp alone; a drafter is loaded whole.
    """
    contents = contents_of_file(stamp[0])
    if setup.ctx_tokens <= 0:
        setup = replace(setup, ctx_tokens=_trained_tokens(contents, setup))
    size = estimate_memory(contents, setup)
    if size is None:
        return Load(weights=sum(facts[1] for facts in stamp[1])), 0, setup
    tensors = contents.tensors
    experts = sum(tensor.size_bytes for name, tensor in tensors.items() if _EXPERTS in name)
    load = Load(
        weights=size.weights_bytes + has_head * size.head_bytes,
        experts=min(experts, size.weights_bytes + has_head * size.head_bytes),
        embeddings=tensors[_EMBEDDINGS].size_bytes if _EMBEDDINGS in tensors else 0,
        is_tied="output.weight" not in tensors,
        cache=size.kv_bytes + size.recurrent_bytes + has_head * size.head_kv_bytes,
        compute=size.compute_bytes,
        blocks=contents.integer("block_count") or 0,
    )
    contexts = 1 + (has_head and size.head_bytes > 0)
    return load, contexts * _STATE_GRAPH_BYTES if contents.architecture.kind == "hybrid" else 0, setup


def _trained_tokens(contents: Contents, setup: Setup) -> int:
    """--ctx-size 0: what the model was trained with, for each sequence with a context of its own (common/fit.cpp)."""
    trained = contents.integer("context_length") or Setup().ctx_tokens
    return trained if setup.unified else trained * setup.sequences
