"""Combinations that are known to go wrong, the llama.cpp builds they hold for, and what is done about each.

Every row says where it is known from. docs/hazards.md lists them; a test holds it to this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import architecture_of
from orchestrator.schemas import FlagValue, Hazard, SlotPolicy
from orchestrator.servers.spread import whole_number

_GOES_NOT_BACK = frozenset({"hybrid", "recurrent"})
# llm_arch_supports_sm_tensor of src/llama-arch.cpp.
_NO_TENSOR_SPLIT = frozenset(
    (
        *("grok", "mpt", "plamo2", "minicpm3", "gemma3n", "mamba", "mamba2", "jamba", "falcon-h1", "olmo2", "olmoe"),
        *("deepseek2", "deepseek32", "hy_v4", "dots3note", "glm-dsa", "bitnet", "t5", "nemotron_h"),
        *("nemotron_h_moe", "granitehybrid", "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "kimi-linear"),
        *("bailingmoe3", "kimi-k3", "glm5-next", "qwen3tts"),
    )
)


# process() of these types passes over batches of embeddings; draft-simple does not.
_READS_STATES = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})


@dataclass(frozen=True)
class Facts:
    """What hazards depend on. `kinds` are those of the accelerators that the server gets, one for each."""

    architecture: str
    spec_types: tuple[str, ...]
    flags: Mapping[str, FlagValue]
    kinds: tuple[str, ...] = ()
    build: int | None = None
    is_patched: bool = True

    @property
    def goes_not_back(self) -> bool:
        """Whether its state cannot be cut back to any earlier token."""
        return architecture_of(self.architecture).kind in _GOES_NOT_BACK


@dataclass(frozen=True)
class Row:
    """One hazard. `first` and `last` are llama.cpp's build numbers; no last one: not mended so far."""

    id: str
    message: str
    when: Callable[[Facts], bool]
    flags: dict[str, FlagValue] = field(default_factory=dict)
    refuses: bool = False
    first: int = 0
    last: int | None = None

    def holds(self, facts: Facts) -> bool:
        """Whether it is about this server. A build without a number is taken for one that has the fault."""
        known = facts.build is None or (self.first <= facts.build and (self.last is None or facts.build <= self.last))
        return known and self.when(facts)


def _several_rocm(facts: Facts) -> bool:
    if not facts.goes_not_back or facts.flags.get("split-mode") == "none":
        return False
    if whole_number(facts.flags.get("gpu-layers")) == 0:
        return False
    named = facts.flags.get("device")
    count = facts.kinds.count("rocm")
    return (count if named is None else min(count, len(str(named).split(",")))) > 1


def _drafting(facts: Facts) -> list[str]:
    return [kind for kind in facts.spec_types if kind.startswith("draft-")]


def _splits_tensors(facts: Facts) -> bool:
    return facts.flags.get("split-mode") == "tensor"


TABLE: tuple[Row, ...] = (
    Row(
        "hybrid-several-rocm",
        "a hybrid or recurrent model on several ROCm devices can fault when a saved state is restored "
        "(llama.cpp#20176, a copy in ROCm's runtime), so states are not saved: a prompt that does not go on from a "
        "slot is read whole",
        _several_rocm,
        flags={"ctx-checkpoints": 0, "cache-ram": 0},
    ),
    Row(
        "mtp-mmproj",
        "a drafter that reads the target's states skips images (common/speculative.cpp), so the text after one "
        "ends in 500 'failed to process speculative batch' (llama.cpp#25129, #22105)",
        lambda f: bool(_READS_STATES & set(f.spec_types)) and any(n.startswith("mmproj") for n in f.flags),
        refuses=True,
    ),
    Row(
        "tensor-split-architecture",
        "--split-mode tensor is not there for this architecture (llm_arch_supports_sm_tensor in src/llama-arch.cpp); "
        "use layer or row",
        lambda f: _splits_tensors(f) and f.architecture in _NO_TENSOR_SPLIT,
        refuses=True,
    ),
    Row(
        "tensor-split-flash-attention",
        "--split-mode tensor needs flash attention (src/llama-context.cpp), and it is off",
        lambda f: _splits_tensors(f) and f.flags.get("flash-attn") in ("off", False),
        refuses=True,
    ),
    Row(
        "tensor-split-mtp",
        "--split-mode tensor with draft-mtp crashes while the head is loaded (llama.cpp#24309) or drafts "
        "(llama.cpp#24552); use layer",
        lambda f: _splits_tensors(f) and "draft-mtp" in f.spec_types,
        refuses=True,
        # Reported to work in 10661 (llama.cpp#27833); the pinned build keeps its own tensor_split, as #24552 asked.
        last=10660,
    ),
    Row(
        "tensor-split-block-drafter",
        "--split-mode tensor with draft-dflash or draft-dspark does not load: they share the target's output, which is "
        "split (llama.cpp#27833); use layer",
        lambda f: _splits_tensors(f) and bool({"draft-dflash", "draft-dspark"} & set(f.spec_types)),
        refuses=True,
    ),
    Row(
        "tensor-split-experimental",
        "--split-mode tensor is experimental in llama.cpp, and --fit does not work with it (common/fit.cpp): what does "
        "not fit its devices fails to start",
        _splits_tensors,
    ),
    Row(
        "several-drafters",
        "several draft-… types stand beside each other, and there is one context that drafts: the pinned server "
        "answers 500 or drafts nothing; name one of them, n-gram types may stand beside it",
        lambda f: len(_drafting(f)) > 1,
        refuses=True,
    ),
    Row(
        "unpatched-busy-slot",
        "an unpatched llama-server writes another prompt over a running answer when a request names its slot and the "
        "prompt cache holds a better match (patch 0001), so it gets no prompt cache",
        lambda f: not f.is_patched,
        flags={"cache-ram": 0},
    ),
    Row(
        "unpatched-signal",
        "an unpatched llama-server that is told to end during a decode can wait for itself (patch 0009): it is then "
        "ended by KILL, SLIPSTREAM_STOP_TIMEOUT_SECONDS later",
        lambda f: not f.is_patched,
    ),
    Row(
        "short-warm-up",
        "a first generation of one token before a drafted one has faulted on gfx906: the warm-up generates 16 tokens "
        "on every slot",
        lambda f: "rocm" in f.kinds and "draft-mtp" in f.spec_types,
    ),
)


def weigh(facts: Facts, has: Callable[[str], bool] = lambda _: True) -> tuple[Hazard, ...]:
    """The hazards of a server, with the flags that are set to be safe; SlipstreamError hazard when it must not run.

    A flag that an operator or the model file has set stays: the hazard is then shown without it. So does one that the
    binary does not have, as `has` says.
    """
    found = [row for row in TABLE if row.holds(facts)]
    if refused := [row for row in found if row.refuses]:
        raise SlipstreamError(
            Code.HAZARD,
            "; ".join(f"{row.id}: {row.message}" for row in refused),
            hint="docs/hazards.md lists what is known to go wrong",
            details={"hazards": [row.id for row in refused]},
        )
    return tuple(
        Hazard(
            id=row.id,
            message=row.message,
            flags={n: v for n, v in row.flags.items() if n not in facts.flags and has(n)},
        )
        for row in found
    )


def keeps_slots(facts: Facts, policy: SlotPolicy) -> bool:
    """Whether conversations are kept on their slots: not where naming a slot can spoil an answer on it."""
    if not facts.is_patched and _is_on(facts, "cache-ram"):
        return False
    return policy.affinity == "on" or (policy.affinity == "auto" and facts.goes_not_back)


def erases_slots(facts: Facts, policy: SlotPolicy) -> bool:
    """Whether a slot is emptied before a request that does not go on from it.

    `auto`: where states must not be restored, and an operator has them saved all the same.
    """
    if policy.erase != "auto":
        return policy.erase == "on"
    return _several_rocm(facts) and (_is_on(facts, "ctx-checkpoints") or _is_on(facts, "cache-ram"))


def _is_on(facts: Facts, name: str) -> bool:
    """Whether an operator has set a flag to something other than 0; what is not set `weigh` makes safe."""
    return name in facts.flags and whole_number(facts.flags[name]) != 0
