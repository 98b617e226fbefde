"""The toys, and copies of them with one thing wrong; what else may be handed to a server by mistake."""

import struct
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items, edited, gguf
from tests.toys import Knobs, split_mtp, write_architecture, write_hybrid, write_mtp, write_pair
from tests.toys import glm4moe as glm4moe_toy
from tests.toys.writer import Shape, ToyWriter


class Bench:
    """The toys, and damaged copies of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mtp, self.hybrid, self.target, self.small = (
            folder / f"{name}.gguf" for name in ("mtp", "hybrid", "target", "small")
        )
        write_mtp(self.mtp)
        write_hybrid(self.hybrid)
        write_pair(self.target, self.small)
        self.parts = split_mtp(self.mtp, folder)
        self.hybrid_parts = split_mtp(self.hybrid, folder)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.gguf"

    def without(self, source: Path, *names: str) -> Path:
        return edited(source, self.path(f"{source.stem}-without-{names[0]}"), keep=lambda name: name not in names)

    def announced(self, source: Path, head: int) -> Path:
        """A trunk that still announces its head."""
        target = self.path(f"{source.stem}-announced")
        return edited(source, target, keep=lambda name: not name.startswith(f"blk.{head}."))

    def changed(self, source: Path, **keys: int | None) -> Path:
        """Keys of the architecture, changed or (None) taken away."""
        arch = {"mtp": "glm4moe", "hybrid": "qwen35"}[source.stem]
        target = self.path(f"{source.stem}-changed-{'-'.join(keys)}-{'-'.join(map(str, keys.values()))}")
        return edited(source, target, keys={f"{arch}.{name}": value for name, value in keys.items()})

    def tokens(self, source: Path, **changed: str) -> Path:
        """The same with texts of tokens changed, given as t<id>."""
        array = read_file(source).array("tokenizer.ggml.tokens")
        assert array is not None
        texts = array.values()
        for name, text in changed.items():
            texts[int(name[1:])] = text
        keys = {"tokenizer.ggml.tokens": Items(ValueType.STRING, texts)}
        return edited(source, self.path(f"{source.stem}-tokens-{'-'.join(changed)}"), keys=keys)

    def array(self, source: Path, name: str, length: int) -> Path:
        """One value a block under `glm4moe.<name>`, for fewer or more blocks than there are."""
        keys = {f"glm4moe.{name}": Items(ValueType.INT32, [1] * length)}
        return edited(source, self.path(f"{source.stem}-array-{length}"), keys=keys)

    def shards(self) -> tuple[Path, Path]:
        """The MTP toy in two files."""
        paths = tuple(self.folder / f"split-{n:05d}-of-00002.gguf" for n in (1, 2))
        names = read_file(self.mtp).tensors.keys()
        for index, path in enumerate(paths):
            keys = {
                "split.no": (ValueType.UINT16, index),
                "split.count": (ValueType.UINT16, 2),
                "split.tensors.count": (ValueType.INT32, len(names)),
            }
            of_head = {name for name in names if name.startswith("blk.2.")}
            edited(self.mtp, path, keys=keys, keep=(of_head if index else names - of_head).__contains__)
        return paths[0], paths[1]

    def trunk_of(self, arch: str) -> Path:
        """The trunk of an architecture's toy."""
        write_architecture(arch, self.path(arch))
        return split_mtp(self.path(arch), self.folder).trunk

    def without_feed_forward(self, arch: str) -> Path:
        """The toy of an architecture without the feed-forward tensors of its head."""
        write_architecture(arch, self.path(arch))
        blocks = read_file(self.path(arch)).integer(f"{arch}.block_count") or 0
        gone = tuple(f"blk.{blocks - 1}.ffn_{part}" for part in ("gate", "up", "down", "exp"))
        return edited(self.path(arch), self.path(f"{arch}-cut"), keep=lambda name: not name.startswith(gone))

    def other_width(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A drafter of other width than the toys."""
        monkeypatch.setattr(glm4moe_toy, "SHAPE", Shape(n_embd=320))
        wide = self.path("wide")
        write_mtp(wide)
        return split_mtp(wide, self.folder).drafter

    def doubled(self) -> Path:
        """A head of two equal blocks."""
        keys = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 2}
        return edited(
            self.mtp,
            self.path("doubled"),
            keys=keys,
            names=lambda name: (name, name.replace("blk.2.", "blk.3.")) if name.startswith("blk.2.") else (name,),
        )

    def eagle3(self, *layers: int, hidden: int | None = None) -> Path:
        """A drafter of weights at random that reads the inputs of these blocks (llama.cpp, src/models/eagle3.cpp)."""
        shape = Shape()
        path = self.path(f"eagle3-{'-'.join(map(str, layers))}-{hidden}")
        hidden = hidden or shape.n_embd
        with ToyWriter(path, "eagle3", shape, Knobs()) as toy:
            toy.gguf.add_block_count(1)
            toy.by_block("target_layers", layers)
            toy.gguf.add_uint32("eagle3.target_hidden_size", hidden)
            toy.attention_keys(n_rot=shape.head_dim)
            toy.language_tensors(toy.language.drafter_logits)
            toy.random("fc.weight", shape.n_embd, 3 * hidden)
            for norm in ("attn_norm", "attn_norm_2", "ffn_norm"):
                toy.ones(f"blk.0.{norm}.weight", shape.n_embd)
            for part, width in (("q", shape.n_head), ("k", shape.n_head_kv), ("v", shape.n_head_kv)):
                toy.random(f"blk.0.attn_{part}.weight", width * shape.head_dim, 2 * shape.n_embd)
            toy.outward("blk.0.attn_output.weight", shape.n_embd, shape.n_head * shape.head_dim)
            toy.dense_ffn("blk.0.")
        return path

    def unsupported(self) -> Path:
        """glm4, whose loader takes a head that nothing drafts with (llama.cpp, src/models/glm4.cpp)."""
        shape = Shape()
        with ToyWriter(self.path("glm4"), "glm4", shape, Knobs()) as toy:
            toy.gguf.add_block_count(2)
            toy.gguf.add_nextn_predict_layers(1)
            toy.attention_keys(n_rot=shape.head_dim)
            toy.language_tensors(toy.language.target_logits)
            for prefix in ("blk.0.", "blk.1."):
                for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                    toy.ones(f"{prefix}{norm}.weight", shape.n_embd)
                toy.attention(prefix)
                toy.random(f"{prefix}ffn_up.weight", 2 * shape.n_ff, shape.n_embd)
                toy.outward(f"{prefix}ffn_down.weight", shape.n_embd, shape.n_ff)
            toy.nextn("blk.1.")
        return self.path("glm4")


def page(b: Bench) -> Path:
    b.path("page").write_bytes(b"<!DOCTYPE html>" + bytes(100))
    return b.path("page")


def projector(b: Bench) -> Path:
    b.path("mmproj").write_bytes(gguf({"general.architecture": "clip", "clip.has_vision_encoder": True}))
    return b.path("mmproj")


def first_alone(b: Bench) -> Path:
    """The first shard, in a folder without the second."""
    (b.folder / "alone").mkdir(exist_ok=True)
    first = b.shards()[0]
    alone = b.folder / "alone" / first.name
    alone.write_bytes(first.read_bytes())
    return alone


def renamed(b: Bench) -> Path:
    b.path("renamed").write_bytes(b.shards()[0].read_bytes())
    return b.path("renamed")


def with_scalar(b: Bench) -> Path:
    """A scale as a tensor of no dimensions, as converters write numbers by themselves."""
    one = ((), TensorType.F32, struct.pack("<f", 1.0))
    return edited(b.target, b.path("scaled"), added={"blk.0.attn_q.scale": one})


def without_tokenizer(b: Bench, source: Path) -> Path:
    header = read_file(source)
    tokens = header.array("tokenizer.ggml.tokens")
    assert tokens is not None
    keys: dict[str, Any] = {name: None for name in header.keys if name.startswith("tokenizer.")}
    keys |= {"tokenizer.ggml.model": "none", header.arch_key("vocab_size"): len(tokens)}
    return edited(source, b.path("bare"), keys=keys)


def with_bos(b: Bench, source: Path, bos: int) -> Path:
    keys = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": bos}
    return edited(source, b.path(f"{source.stem}-bos-{bos}"), keys=keys)
