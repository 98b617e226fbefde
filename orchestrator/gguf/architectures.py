"""What the pinned llama.cpp does with each architecture: pure data, read from src/llama-arch.cpp and src/models/*.cpp.

`tests/integration/gguf/test_architectures.py` holds it against the source.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["attention", "hybrid", "recurrent"]
# Tensors of a block that must be there, named without `blk.N.`: each element a tuple of alternatives, each of them a
# tuple of names.
Requirements: TypeAlias = tuple[tuple[tuple[str, ...], ...], ...]

# LLAMA_MAX_LAYERS: the only limit where a head may have several blocks, each of which drafts one token.
ANY_NUMBER = 512


@dataclass(frozen=True)
class Architecture:
    """One architecture; those without an entry in ARCHITECTURES are as the defaults say."""

    name: str
    kind: Kind = "attention"
    # File in src/models.
    source: str = ""
    # What draft-mtp needs in each block of a head; empty where llama.cpp has no graph to draft with.
    head: Requirements = ()
    # Needed beside `head` where expert_shared_count is above 0.
    head_if_shared: Requirements = ()
    # `nextn.*` the loader also takes. Any other, as every tensor it does not ask for, stops the whole load.
    head_optional: tuple[str, ...] = ()
    max_head_blocks: int = 0
    # The loader takes the tensors of a head, though llama.cpp cannot draft with them.
    keeps_head: bool = False
    # The head's blocks are a mixture of experts: leading_dense_block_count is at most the number of trunk blocks.
    head_is_moe: bool = False
    # A file that announces a head and lacks its eh_proj loads, as long as draft-mtp is not asked for.
    announced_head_may_lack: bool = False
    # A head that is announced and lacks its eh_proj is not counted: all blocks are the trunk's.
    absent_head_is_trunk: bool = False
    # Of what `head` names, the loader also takes a file without: only the graph that drafts needs them.
    head_to_draft: tuple[str, ...] = ()
    # Needed outside of blocks by a file without a trunk, which `-md` loads for draft-mtp.
    drafter_tensors: tuple[str, ...] = ("token_embd.weight", "output_norm.weight")
    # In place of a drafter's output.weight the head's own will do.
    own_output_will_do: bool = False
    # The tensor by whose absence llama.cpp knows a file without a trunk.
    trunk_mark: str = "blk.0.attn_norm.weight"
    # Arrays of as many values as the trunk has blocks, which stay as they are when a head is added or taken away.
    trunk_arrays: tuple[str, ...] = ()
    # The state of recurrent blocks can step back; without it, a rejected draft costs a replay from a checkpoint.
    rolls_back: bool = False
    # No model of its own, but a drafter of this speculative type.
    drafts_for: str | None = None

    @property
    def drafts_with_mtp(self) -> bool:
        """Whether draft-mtp drafts with a head of this architecture."""
        return bool(self.head)

    @property
    def loads_head(self) -> bool:
        """Whether its loader takes the tensors of a head. Others take none, and read the blocks of the trunk alone."""
        return self.keeps_head or self.drafts_with_mtp


def _needed(text: str) -> Requirements:
    """`a b|c+d` as requirements: a, and either b or both c and d. A name without an ending is a `.weight`."""
    return tuple(
        tuple(
            tuple(n if n.endswith(".bias") else f"{n}.weight" for n in names.split("+")) for names in group.split("|")
        )
        for group in text.split()
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"{name}.weight" for name in text.split())


_QKV = "attn_q+attn_k+attn_v|attn_qkv"
_SPLIT_EXPERTS = "ffn_gate_inp ffn_down_exps ffn_gate_exps ffn_up_exps"
_EXPERTS = "ffn_gate_inp ffn_down_exps ffn_gate_exps+ffn_up_exps|ffn_gate_up_exps"
_SHARED = "ffn_gate_shexp ffn_up_shexp ffn_down_shexp"
_DENSE_OR_EXPERTS = "ffn_gate+ffn_up+ffn_down|ffn_gate_inp+ffn_down_exps"
_FFN = "ffn_gate ffn_up ffn_down ffn_gate_inp ffn_down_exps"
_MLA = "attn_norm attn_q_a attn_q_a_norm attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_k_b attn_v_b attn_output ffn_norm"
_GATED = f"attn_norm {_QKV} attn_output attn_q_norm attn_k_norm post_attention_norm"
_NEXTN = "nextn.eh_proj nextn.enorm nextn.hnorm"
_OWN = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight", "nextn.shared_head_norm.weight")
_WITH_OUTPUT = ("token_embd.weight", "output_norm.weight", "output.weight")

_DRAFTING = (
    Architecture(
        "glm4moe",
        source="glm4-moe.cpp",
        head=_needed(f"attn_norm {_QKV} attn_output post_attention_norm {_SPLIT_EXPERTS} exp_probs_b.bias {_NEXTN}"),
        head_if_shared=_needed(_SHARED),
        head_optional=_OWN,
        max_head_blocks=1,
        head_is_moe=True,
        announced_head_may_lack=True,
    ),
    Architecture(
        "deepseek2",
        source="deepseek2.cpp",
        head=_needed(f"{_MLA} {_EXPERTS} {_SHARED} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=1,
        head_is_moe=True,
        announced_head_may_lack=True,
        # Small models have one attn_q instead of the first three, old files one attn_kv_b instead of the others.
        head_to_draft=_names("attn_q_a attn_q_a_norm attn_q_b attn_k_b attn_v_b"),
    ),
    Architecture(
        "deepseek32",
        source="deepseek32.cpp",
        head=_needed(
            f"{_MLA} indexer.k_norm indexer.k_norm.bias indexer.proj indexer.attn_k indexer.attn_q_b "
            f"{_SPLIT_EXPERTS} {_SHARED} {_NEXTN}"
        ),
        head_optional=_OWN,
        max_head_blocks=1,
        head_is_moe=True,
        announced_head_may_lack=True,
    ),
    Architecture(
        "glm-dsa",
        source="glm-dsa.cpp",
        head=_needed(f"{_MLA} {_SPLIT_EXPERTS} {_SHARED} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=1,
        head_is_moe=True,
        announced_head_may_lack=True,
        trunk_arrays=("attention.indexer.types",),
    ),
    Architecture(
        "deepseek4",
        kind="hybrid",
        source="deepseek4.cpp",
        head=_needed(
            "attn_norm attn_sinks attn_q_a attn_q_a_norm attn_q_b attn_kv attn_kv_a_norm attn_output_a attn_output_b "
            "hc_attn_fn hc_attn_base hc_attn_scale hc_ffn_fn hc_ffn_base hc_ffn_scale "
            f"ffn_norm exp_probs_b.bias {_SPLIT_EXPERTS} {_SHARED} {_NEXTN}"
        ),
        head_optional=_OWN,
        max_head_blocks=1,
        absent_head_is_trunk=True,
        drafter_tensors=(*_WITH_OUTPUT, "output_hc_fn.weight", "output_hc_base.weight", "output_hc_scale.weight"),
        rolls_back=True,
    ),
    Architecture(
        "bailingmoe3",
        kind="hybrid",
        source="bailingmoe3.cpp",
        head=_needed(
            "attn_norm attn_q_a+attn_q_a_norm+attn_q_b|attn_q attn_kv_a_mqa attn_kv_a_norm attn_k_b attn_v_b attn_gate "
            f"attn_output ffn_norm exp_probs_b.bias {_SPLIT_EXPERTS} {_SHARED} {_NEXTN} layer_output_norm"
        ),
        max_head_blocks=1,
        announced_head_may_lack=True,
        rolls_back=True,
    ),
    Architecture(
        "cohere2moe",
        source="cohere2moe.cpp",
        head=_needed(f"attn_norm {_QKV} attn_output {_EXPERTS} {_NEXTN}"),
        head_if_shared=_needed(_SHARED),
        head_optional=_OWN,
        max_head_blocks=1,
        announced_head_may_lack=True,
    ),
    Architecture(
        "hy_v3",
        source="hy-v3.cpp",
        head=_needed(f"attn_norm {_QKV} attn_output attn_q_norm attn_k_norm ffn_norm {_DENSE_OR_EXPERTS} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=ANY_NUMBER,
        announced_head_may_lack=True,
        head_to_draft=_names(_FFN),
    ),
    Architecture(
        "mimo2",
        source="mimo2.cpp",
        head=_needed(f"attn_norm attn_qkv attn_output ffn_norm ffn_gate ffn_up ffn_down {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=ANY_NUMBER,
        announced_head_may_lack=True,
        head_to_draft=_names("attn_qkv ffn_gate ffn_up ffn_down"),
        drafter_tensors=_WITH_OUTPUT,
    ),
    Architecture(
        "step35",
        source="step35.cpp",
        head=_needed(f"attn_norm {_QKV} attn_output ffn_norm {_DENSE_OR_EXPERTS} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=ANY_NUMBER,
        announced_head_may_lack=True,
        head_to_draft=_names(_FFN),
        drafter_tensors=_WITH_OUTPUT,
        own_output_will_do=True,
    ),
    Architecture(
        "nemotron_h_moe",
        kind="hybrid",
        source="nemotron-h.cpp",
        head=_needed(
            f"attn_norm {_QKV} attn_output post_attention_norm ffn_gate_inp exp_probs_b.bias ffn_down_exps ffn_up_exps "
            f"ffn_up_shexp ffn_down_shexp {_NEXTN} nextn.shared_head_norm"
        ),
        max_head_blocks=1,
        rolls_back=True,
    ),
    Architecture(
        "qwen35",
        kind="hybrid",
        source="qwen35.cpp",
        head=_needed(f"{_GATED} ffn_gate ffn_up ffn_down {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=1,
        rolls_back=True,
    ),
    Architecture(
        "qwen35moe",
        kind="hybrid",
        source="qwen35moe.cpp",
        head=_needed(f"{_GATED} {_EXPERTS} ffn_gate_inp_shexp {_SHARED} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=1,
        rolls_back=True,
    ),
    Architecture(
        "qwen3next",
        kind="hybrid",
        source="qwen3next.cpp",
        head=_needed(f"{_GATED} {_EXPERTS} ffn_gate_inp_shexp {_SHARED} {_NEXTN}"),
        head_optional=_OWN,
        max_head_blocks=1,
    ),
    Architecture(
        "qwen4exp",
        kind="hybrid",
        source="qwen4exp.cpp",
        head=_needed(
            f"{_QKV} attn_output attn_q_norm attn_k_norm indexer.q_proj indexer.k_proj indexer.q_norm indexer.k_norm "
            "hc_attn_norm hc_attn_down hc_attn_up hc_attn_inject hc_ffn_norm hc_ffn_down hc_ffn_up hc_ffn_inject "
            f"{_EXPERTS} ffn_gate_inp_shexp {_SHARED} {_NEXTN} nextn.hc_head_norm nextn.hc_head_down nextn.hc_head_up"
        ),
        max_head_blocks=1,
        drafter_tensors=("token_embd.weight",),
        trunk_mark="blk.0.hc_attn_norm.weight",
        rolls_back=True,
    ),
)
# Their loaders take a head, and nothing drafts with it.
_PRESERVING = ("bailingmoe2", "dots3note", "exaone-moe", "exaone4", "glm4", "glm5-next", "nemotron_h")
# llm_arch_is_hybrid, llm_arch_is_recurrent and llm_arch_supports_rs_rollback of src/llama-arch.cpp; the hybrids that
# draft stand above.
_HYBRID = (
    *("falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "minimax-01"),
    *("nemotron_h", "plamo2"),
)
_RECURRENT = ("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7")
_ROLL_BACK = ("glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h")
_DRAFTERS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "gemma4-assistant": "draft-mtp"}


def _other(name: str) -> Architecture:
    return Architecture(
        name,
        kind="hybrid" if name in _HYBRID else "recurrent" if name in _RECURRENT else "attention",
        keeps_head=name in _PRESERVING,
        announced_head_may_lack=name not in _PRESERVING or name == "dots3note",
        rolls_back=name in _ROLL_BACK,
        drafts_for=_DRAFTERS.get(name),
    )


ARCHITECTURES: dict[str, Architecture] = {a.name: a for a in _DRAFTING} | {
    name: _other(name) for name in sorted({*_PRESERVING, *_HYBRID, *_RECURRENT, *_DRAFTERS})
}


def architecture_of(name: str) -> Architecture:
    """What llama.cpp does with an architecture; for one without an entry, that of a plain model without a head."""
    return ARCHITECTURES.get(name) or _other(name)
