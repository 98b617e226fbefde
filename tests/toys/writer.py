"""Shared parts of the toy makers: the table as embedding and output, and random blocks around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tests.toys import vocabulary
from tests.toys.language import Knobs, Language

CONTEXT_TOKENS = 8192
RMS_EPSILON = 1e-5
# Sub-layer outputs are scaled so that trunk=1 moves a logit about as far as the table spreads them.
TRUNK_SCALE = 0.08


@dataclass(frozen=True)
class Shape:
    """Dimensions of a toy; n_embd holds one direction a token, hence not less than the vocabulary."""

    n_embd: int = 288
    n_ff: int = 64
    n_head: int = 2
    n_head_kv: int = 1
    head_dim: int = 32


class ToyWriter:
    """A GGUF under construction, written when its ``with`` block ends well.

    A token's embedding is its own direction with unit RMS, which the final norm leaves unchanged, so the
    output matrix reads off the token's row of the table; all that a block adds to the stream is context.
    ``n_ff`` and ``n_head`` say those of the shape block by block, as an array in the header.
    """

    def __init__(
        self,
        path: Path,
        arch: str,
        shape: Shape,
        knobs: Knobs,
        *,
        n_ff: Sequence[int] | None = None,
        n_head: Sequence[int] | None = None,
    ) -> None:
        self.arch = arch
        self.shape = shape
        self.language = Language(knobs)
        self.gguf = GGUFWriter(path, arch)
        self._rng = np.random.default_rng((knobs.seed, 2))
        self._out_scale = knobs.trunk * TRUNK_SCALE
        self.gguf.add_name(f"toy-{arch}")
        self.gguf.add_context_length(CONTEXT_TOKENS)
        self.gguf.add_embedding_length(shape.n_embd)
        self.gguf.add_feed_forward_length(shape.n_ff if n_ff is None else n_ff)
        self.gguf.add_head_count(shape.n_head if n_head is None else n_head)
        self.gguf.add_layer_norm_rms_eps(RMS_EPSILON)
        self.gguf.add_vocab_size(vocabulary.SIZE)
        self.gguf.add_file_type(0)
        vocabulary.add_tokenizer(self.gguf)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.gguf.write_header_to_file()
            self.gguf.write_kv_data_to_file()
            self.gguf.write_tensors_to_file()
        self.gguf.close()

    def by_block(self, key: str, values: Sequence[int | float | bool]) -> None:
        """An array under ``<arch>.<key>`` with one value a block, MTP blocks included."""
        self.gguf.add_array(f"{self.arch}.{key}", values)

    def attention_keys(self, n_rot: int, n_head_kv: Sequence[int] | None = None) -> None:
        self.gguf.add_head_count_kv(self.shape.n_head_kv if n_head_kv is None else n_head_kv)
        self.gguf.add_key_length(self.shape.head_dim)
        self.gguf.add_value_length(self.shape.head_dim)
        self.gguf.add_rope_dimension_count(n_rot)

    def language_tensors(self, logits: NDArray[np.float32], *, norm: bool = True) -> None:
        """token_embd, output and, if wanted, output_norm for a table of logits [last token, token]."""
        n_embd = self.shape.n_embd
        embedding = np.zeros((vocabulary.SIZE, n_embd), np.float32)
        np.fill_diagonal(embedding, np.sqrt(n_embd))
        self.tensor("token_embd.weight", embedding)
        if norm:
            self.ones("output_norm.weight", n_embd)
        self.tensor("output.weight", self.head(logits))

    def head(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The output matrix [token, n_embd] that turns a token's direction into its row of logits."""
        matrix = np.zeros((vocabulary.SIZE, self.shape.n_embd), np.float32)
        matrix[:, : vocabulary.SIZE] = logits.T / np.sqrt(self.shape.n_embd)
        return matrix

    def tensor(self, name: str, data: NDArray[np.float32]) -> None:
        self.gguf.add_tensor(name, np.ascontiguousarray(data, dtype=np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.tensor(name, np.ones(shape, np.float32))

    def random(self, name: str, *shape: int, scale: float = 0.1) -> None:
        self.tensor(name, (self._rng.standard_normal(shape) * scale).astype(np.float32))

    def outward(self, name: str, *shape: int, silent: bool = False) -> None:
        """A projection back into the residual stream; its size is the knob ``trunk``, or 0 if silent."""
        self.random(name, *shape, scale=0.0 if silent else self._out_scale)

    def attention(
        self, prefix: str, *, gated: bool = False, fused: bool = False, silent: bool = False, n_head: int | None = None
    ) -> None:
        """attn_q, k, v (or attn_qkv, fused) and output; a gated query carries the gate beside it in double width."""
        width = (n_head or self.shape.n_head) * self.shape.head_dim
        rows = {"q": width * (2 if gated else 1), "k": self._kv_width, "v": self._kv_width}
        for part, n_rows in ({"qkv": sum(rows.values())} if fused else rows).items():
            self.random(f"{prefix}attn_{part}.weight", n_rows, self.shape.n_embd)
        self.outward(f"{prefix}attn_output.weight", self.shape.n_embd, width, silent=silent)

    def dense_ffn(self, prefix: str, *, silent: bool = False) -> None:
        for name in ("ffn_gate", "ffn_up"):
            self.random(f"{prefix}{name}.weight", self.shape.n_ff, self.shape.n_embd)
        self.outward(f"{prefix}ffn_down.weight", self.shape.n_embd, self.shape.n_ff, silent=silent)

    def nextn(self, prefix: str) -> None:
        """An MTP head that passes the last token's embedding through and speaks the drafter's table."""
        self._eh_proj(prefix, np.eye(self.shape.n_embd))
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self.ones(f"{prefix}nextn.{name}.weight", self.shape.n_embd)
        self.tensor(f"{prefix}nextn.shared_head_head.weight", self.head(self.language.drafter_logits))

    def nextn_of_model_output(self, prefix: str) -> None:
        """The same without norms, for a head that may have no output matrix of its own.

        It turns a token's direction into the state from which the model's output reads the drafter's row of logits,
        but for their scale, which the norm behind takes away: ``unsure`` does nothing here. The spare directions
        make the sum zero, so that a LayerNorm changes as little as an RMSNorm.
        Raises ValueError if no state drafts what is to be drafted, as for a control token that the target never says.
        """
        n_embd, size = self.shape.n_embd, vocabulary.SIZE
        target = self.language.target_logits.astype(np.float64)
        drafter = self.language.drafter_logits.astype(np.float64)
        states = np.eye(size)
        differing = (drafter != target).any(axis=1)
        states[differing] = drafter[differing] @ np.linalg.pinv(target)
        missed = np.flatnonzero(np.argmax(states @ target, axis=1) != self.language.drafted)
        if missed.size:
            draft = self.language.drafted[missed[0]]
            raise ValueError(f"{self.arch} drafts through the target's output, which cannot say token {draft}")
        of_embedding = np.zeros((n_embd, n_embd))
        of_embedding[:size, :size] = states.T
        of_embedding[size:, :size] = -states.sum(axis=1) / (n_embd - size)
        self._eh_proj(prefix, of_embedding)

    def _eh_proj(self, prefix: str, of_embedding: NDArray[Any]) -> None:
        ignore_hidden = np.zeros((self.shape.n_embd, self.shape.n_embd))
        self.tensor(f"{prefix}nextn.eh_proj.weight", np.concatenate([of_embedding, ignore_hidden], axis=1))

    @property
    def _kv_width(self) -> int:
        return self.shape.n_head_kv * self.shape.head_dim
