"""Parts of decoder blocks that several architectures share: norms, experts, latent attention, delta nets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gguf import ExpertGatingFuncType

from tests.toys.writer import ToyWriter


def norms(toy: ToyWriter, prefix: str, *names: str) -> None:
    for name in names:
        toy.ones(f"{prefix}{name}.weight", toy.shape.n_embd)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, of which one is used, and a shared expert.

    bias: the selection bias's tensor, or "" for none.
    gated: whether an expert has ffn_gate beside ffn_up.
    shared: whether there is a shared expert.
    weighed_shared: whether the shared expert has a gate of its own, ffn_gate_inp_shexp.
    """

    count: int = 2
    n_ff: int = 16
    bias: str = "exp_probs_b.bias"
    gated: bool = True
    shared: bool = True
    weighed_shared: bool = False
    gating: int = ExpertGatingFuncType.SIGMOID

    def keys(self, toy: ToyWriter, n_ff: Sequence[int] | None = None, used: Sequence[int] | None = None) -> None:
        """The header's expert keys; ``n_ff`` and ``used`` as arrays, one value a block."""
        gguf = toy.gguf
        gguf.add_expert_count(self.count)
        if used is None:
            gguf.add_expert_used_count(1)
        else:
            toy.by_block("expert_used_count", used)
        gguf.add_expert_shared_count(int(self.shared))
        if n_ff is None:
            gguf.add_expert_feed_forward_length(self.n_ff)
        else:
            toy.by_block("expert_feed_forward_length", n_ff)
        gguf.add_expert_weights_scale(1.0)
        gguf.add_expert_weights_norm(True)
        gguf.add_uint32(f"{toy.arch}.expert_gating_func", self.gating)

    def tensors(self, toy: ToyWriter, prefix: str, *, silent: bool = False) -> None:
        n_embd = toy.shape.n_embd
        toy.random(f"{prefix}ffn_gate_inp.weight", self.count, n_embd)
        if self.bias:
            toy.tensor(f"{prefix}{self.bias}", np.zeros(self.count, np.float32))
        for name in ("ffn_gate", "ffn_up") if self.gated else ("ffn_up",):
            toy.random(f"{prefix}{name}_exps.weight", self.count, self.n_ff, n_embd)
            if self.shared:
                toy.random(f"{prefix}{name}_shexp.weight", self.n_ff, n_embd)
        toy.outward(f"{prefix}ffn_down_exps.weight", self.count, n_embd, self.n_ff, silent=silent)
        if self.shared:
            toy.outward(f"{prefix}ffn_down_shexp.weight", n_embd, self.n_ff, silent=silent)
        if self.weighed_shared:
            toy.random(f"{prefix}ffn_gate_inp_shexp.weight", n_embd)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA); a query and key head is ``n_nope`` values and ``n_rot`` rotated ones."""

    q_rank: int = 32
    kv_rank: int = 32
    n_nope: int = 16
    n_rot: int = 16
    n_value: int = 32

    def keys(self, toy: ToyWriter, n_head_kv: Sequence[int] | None = None) -> None:
        gguf = toy.gguf
        # What is cached is one head: the latent and the rotated part.
        gguf.add_head_count_kv(1 if n_head_kv is None else n_head_kv)
        gguf.add_key_length(self.kv_rank + self.n_rot)
        gguf.add_value_length(self.kv_rank)
        gguf.add_key_length_mla(self.n_nope + self.n_rot)
        gguf.add_value_length_mla(self.n_value)
        gguf.add_q_lora_rank(self.q_rank)
        gguf.add_kv_lora_rank(self.kv_rank)
        gguf.add_rope_dimension_count(self.n_rot)

    def tensors(self, toy: ToyWriter, prefix: str, *, silent: bool = False) -> None:
        n_embd, n_head = toy.shape.n_embd, toy.shape.n_head
        toy.random(f"{prefix}attn_q_a.weight", self.q_rank, n_embd)
        toy.ones(f"{prefix}attn_q_a_norm.weight", self.q_rank)
        toy.random(f"{prefix}attn_q_b.weight", n_head * (self.n_nope + self.n_rot), self.q_rank)
        toy.random(f"{prefix}attn_kv_a_mqa.weight", self.kv_rank + self.n_rot, n_embd)
        toy.ones(f"{prefix}attn_kv_a_norm.weight", self.kv_rank)
        toy.random(f"{prefix}attn_k_b.weight", n_head, self.kv_rank, self.n_nope)
        toy.random(f"{prefix}attn_v_b.weight", n_head, self.n_value, self.kv_rank)
        toy.outward(f"{prefix}attn_output.weight", n_embd, n_head * self.n_value, silent=silent)


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta-net attention; ``joined`` keeps its two small projections in one tensor, ssm_ba."""

    state: int = 32
    key_heads: int = 2
    value_heads: int = 4
    conv_kernel: int = 4
    joined: bool = False

    def keys(self, toy: ToyWriter) -> None:
        toy.gguf.add_ssm_conv_kernel(self.conv_kernel)
        toy.gguf.add_ssm_inner_size(self._inner)
        toy.gguf.add_ssm_state_size(self.state)
        toy.gguf.add_ssm_time_step_rank(self.value_heads)
        toy.gguf.add_ssm_group_count(self.key_heads)

    def tensors(self, toy: ToyWriter, prefix: str) -> None:
        n_embd = toy.shape.n_embd
        conv_width = 2 * self.state * self.key_heads + self._inner
        toy.random(f"{prefix}attn_qkv.weight", conv_width, n_embd)
        toy.random(f"{prefix}attn_gate.weight", self._inner, n_embd)
        toy.random(f"{prefix}ssm_conv1d.weight", conv_width, self.conv_kernel, scale=0.5)
        toy.random(f"{prefix}ssm_dt.bias", self.value_heads)
        # A negative decay rate keeps the state bounded.
        toy.tensor(f"{prefix}ssm_a", np.linspace(-0.25, -0.05, self.value_heads, dtype=np.float32))
        if self.joined:
            toy.random(f"{prefix}ssm_ba.weight", 2 * self.value_heads, n_embd)
        else:
            for name in ("ssm_alpha", "ssm_beta"):
                toy.random(f"{prefix}{name}.weight", self.value_heads, n_embd)
        toy.ones(f"{prefix}ssm_norm.weight", self.state)
        toy.outward(f"{prefix}ssm_out.weight", n_embd, self._inner)

    @property
    def _inner(self) -> int:
        return self.state * self.value_heads
