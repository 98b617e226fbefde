"""Headers of made-up models, right in all that inspect and preflight look at; tests take away or change something."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.gguf.architectures import ARCHITECTURES, Requirements
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items, Keys, Tensors, gguf

WIDTH = 8
TOKENS = ("<s>", "</s>", "a", "b")
TYPES = (3, 3, 1, 1)


def keys(arch: str, trunk: int, heads: int = 0, *, tokens: Sequence[str] = TOKENS, **of_arch: Any) -> dict[str, Any]:
    """Keys of a model; `of_arch` go under `<arch>.`, with `__` for a dot."""
    values: dict[str, Any] = {
        "block_count": trunk + heads,
        "context_length": 512,
        "embedding_length": WIDTH,
        "attention.head_count": 2,
        "feed_forward_length": 16,
        **({"nextn_predict_layers": heads} if heads else {}),
        **{name.replace("__", "."): value for name, value in of_arch.items()},
    }
    return {
        "general.architecture": arch,
        "general.name": "made",
        **{f"{arch}.{name}": value for name, value in values.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Items(ValueType.STRING, tokens),
        "tokenizer.ggml.token_type": Items(ValueType.INT32, (*TYPES, *(1 for _ in tokens))[: len(tokens)]),
        "tokenizer.ggml.merges": Items(ValueType.STRING, ["a b"]),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def around(arch: str, *, rows: int = len(TOKENS)) -> dict[str, Any]:
    """The tensors outside of blocks, as a drafter of the architecture needs them."""
    names = dict.fromkeys(("token_embd.weight", "output_norm.weight", *_needed_outside(arch)))
    return {name: ((WIDTH, rows) if name == "token_embd.weight" else (WIDTH,), TensorType.F32) for name in names}


def trunk_of(arch: str, blocks: int) -> dict[str, Any]:
    return {f"blk.{n}.{rest}": ((WIDTH,), TensorType.F32) for n in range(blocks) for rest in _marks(arch)}


def head_of(arch: str, block: int, blocks: int = 1) -> dict[str, Any]:
    """All tensors of a head, in Q8_0 where they are no norm."""
    needed = (*ARCHITECTURES[arch].head, *ARCHITECTURES[arch].head_if_shared)
    return {
        f"blk.{n}.{rest}": ((32,), TensorType.F32 if "norm" in rest else TensorType.Q8_0)
        for n in range(block, block + blocks)
        for rest in _first(needed)
    }


def whole(
    arch: str = "glm4moe", trunk: int = 2, heads: int = 1, **changed: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and tensors of a model with a head."""
    return keys(arch, trunk, heads, **changed), around(arch) | trunk_of(arch, trunk) | head_of(arch, trunk, heads)


def drafter(
    arch: str = "glm4moe", trunk: int = 2, heads: int = 1, **changed: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and tensors of a file that `-md` loads."""
    return keys(arch, trunk, heads, **changed), around(arch) | head_of(arch, trunk, heads)


def write(path: Path, made: tuple[Keys, Tensors]) -> Path:
    path.write_bytes(gguf(*made))
    return path


def _first(needed: Requirements) -> list[str]:
    return [name for alternatives in needed for name in alternatives[0]]


def _marks(arch: str) -> tuple[str, ...]:
    mark = ARCHITECTURES[arch].trunk_mark if arch in ARCHITECTURES else "blk.0.attn_norm.weight"
    return (mark.removeprefix("blk.0."), "ffn_down.weight")


def _needed_outside(arch: str) -> tuple[str, ...]:
    return ARCHITECTURES[arch].drafter_tensors if arch in ARCHITECTURES else ()
