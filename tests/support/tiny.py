"""The smallest hy_v3 models that the graft takes for whole: some kilobytes, with shapes and keys of a real one."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items, Keys, Tensors, gguf, header_of

ARCH = "hy_v3"
WIDTH, VOCABULARY, FF, HEAD_DIM, KV_HEADS = 32, 6, 16, 16, 1
F32, Q8_0 = TensorType.F32, TensorType.Q8_0
# A prime number of bytes, so that no two blocks of a large file are alike.
_NOISE_BYTES = 1_048_583
TOKENS = ["a", "b", "c", "d", "e", "<end>"]

_BLOCK: Tensors = {
    "attn_norm.weight": ((WIDTH,), F32),
    "attn_q.weight": ((WIDTH, WIDTH), F32),
    "attn_k.weight": ((WIDTH, HEAD_DIM * KV_HEADS), F32),
    "attn_v.weight": ((WIDTH, HEAD_DIM * KV_HEADS), F32),
    "attn_output.weight": ((WIDTH, WIDTH), F32),
    "attn_q_norm.weight": ((HEAD_DIM,), F32),
    "attn_k_norm.weight": ((HEAD_DIM,), F32),
    "ffn_norm.weight": ((WIDTH,), F32),
    "ffn_gate.weight": ((WIDTH, FF), F32),
    "ffn_up.weight": ((WIDTH, FF), F32),
    "ffn_down.weight": ((FF, WIDTH), F32),
}
_NEXTN: Tensors = {
    "nextn.eh_proj.weight": ((2 * WIDTH, WIDTH), Q8_0),
    "nextn.enorm.weight": ((WIDTH,), F32),
    "nextn.hnorm.weight": ((WIDTH,), F32),
}


@dataclass(frozen=True)
class Tiny:
    """A model to be written. `more_keys` may replace keys; None takes one away. `announced` is what the keys say of a
    head; by default what is there. `alike` files have the same head data."""

    trunk: int = 2
    heads: int = 0
    announced: int | None = None
    more_keys: Mapping[str, Any] = field(default_factory=dict)
    more_tensors: Tensors = field(default_factory=dict)
    without: tuple[str, ...] = ()
    tokenizer: bool = True
    embeddings: bool = True
    head_at: int | None = None
    alignment: int = 32
    version: int = 3
    seed: int = 1

    @property
    def keys(self) -> Keys:
        announced = self.heads if self.announced is None else self.announced
        keys: dict[str, Any] = {
            "general.architecture": ARCH,
            "general.name": "tiny",
            f"{ARCH}.block_count": (self.trunk if self.head_at is None else self.head_at) + announced,
            f"{ARCH}.embedding_length": WIDTH,
            f"{ARCH}.attention.head_count": WIDTH // HEAD_DIM,
            f"{ARCH}.attention.head_count_kv": KV_HEADS,
            f"{ARCH}.feed_forward_length": FF,
        }
        if announced:
            keys[f"{ARCH}.nextn_predict_layers"] = announced
        if self.tokenizer:
            keys["tokenizer.ggml.model"] = "gpt2"
            keys["tokenizer.ggml.tokens"] = Items(ValueType.STRING, TOKENS)
        keys |= self.more_keys
        return {name: value for name, value in keys.items() if value is not None}

    @property
    def tensors(self) -> Tensors:
        embeddings: Tensors = {
            "token_embd.weight": ((WIDTH, VOCABULARY), F32),
            "output_norm.weight": ((WIDTH,), F32),
        }
        tensors = dict(embeddings) if self.embeddings else {}
        for block in range(self.trunk):
            tensors |= {f"blk.{block}.{name}": info for name, info in _BLOCK.items()}
        first = self.trunk if self.head_at is None else self.head_at
        for block in range(first, first + self.heads):
            tensors |= {f"blk.{block}.{name}": info for name, info in {**_BLOCK, **_NEXTN}.items()}
        return {name: info for name, info in {**tensors, **self.more_tensors}.items() if name not in self.without}

    def data(self) -> bytes:
        """Bytes that tell every tensor, and every seed, from the next; padded as files in the field are."""
        body = bytearray()
        for name, (shape, type_) in self.tensors.items():
            mark = sum(name.encode()) * 31 + self.seed
            body += bytes((mark + 7 * i) % 255 + 1 for i in range(type_.size_of(tuple(shape))))
            body += bytes(-len(body) % self.alignment)
        return bytes(body)

    def bytes(self) -> bytes:
        return gguf(self.keys, self.tensors, alignment=self.alignment, version=self.version, data=self.data())

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def write_sparse(self, path: Path) -> Path:
        """The header, and a hole as long as the data."""
        header, sizes = header_of(self.keys, self.tensors, alignment=self.alignment, version=self.version)
        with path.open("wb") as file:
            file.write(header)
            size = sum(-(-size // self.alignment) * self.alignment for size in sizes)
            file.truncate(-(-len(header) // self.alignment) * self.alignment + size)
        return path

    def write_filled(self, path: Path) -> Path:
        """As many bytes of noise as the data has, for models too large for `bytes`."""
        self.write_sparse(path)
        noise, size = random.Random(self.seed).randbytes(_NOISE_BYTES), path.stat().st_size
        with path.open("r+b") as file:
            at = file.seek(read_file(path).data_offset)
            while at < size:
                at += file.write(noise[: size - at])
        return path

    def write_split(self, folder: Path, stem: str, sizes: tuple[int, ...]) -> list[Path]:
        """Shards with so many tensors each; the last one has what is left."""
        names, data = list(self.tensors), self.data()
        count = len(sizes) + 1
        paths: list[Path] = []
        offset = 0
        for number in range(count):
            chosen = names[: sizes[number]] if number < len(sizes) else names
            names = names[len(chosen) :]
            tensors = {name: self.tensors[name] for name in chosen}
            size = sum(
                -(-type_.size_of(tuple(shape)) // self.alignment) * self.alignment for shape, type_ in tensors.values()
            )
            split: Keys = {
                "split.no": (ValueType.UINT16, number),
                "split.count": (ValueType.UINT16, count),
                "split.tensors.count": (ValueType.INT32, len(self.tensors)),
            }
            keys: Keys = {**(self.keys if number == 0 else {}), **split}
            part = gguf(
                keys, tensors, alignment=self.alignment, version=self.version, data=data[offset : offset + size]
            )
            paths.append(folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf")
            paths[-1].write_bytes(part)
            offset += size
        return paths


def head_only(heads: int = 1, head_at: int = 7, **fields: Any) -> Tiny:
    """A head alone, without a tokenizer, numbered for a deeper model."""
    return Tiny(**{"trunk": 0, "heads": heads, "head_at": head_at, "tokenizer": False, "embeddings": False, **fields})


def large(size_bytes: int, **fields: Any) -> Tiny:
    """A model with one tensor of about this size, to be written sparse or filled."""
    rows = size_bytes // (4 * WIDTH)
    return Tiny(more_tensors={"output.weight": ((WIDTH, rows), F32)}, **fields)
