"""What the headers of a model hold together, whether all its shards are there or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import Architecture, architecture_of
from orchestrator.gguf.head import Head, find_head, trunk_blocks
from orchestrator.gguf.header import Header, TensorInfo
from orchestrator.gguf.model import GgufModel, Shard, model_of, shard_paths
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.tokenizer import MODEL, TOKENS

_EMBEDDINGS = "token_embd.weight"
Role: TypeAlias = Literal["model", "drafter", "donor", "mmproj", "vocabulary", "adapter", "imatrix", "other"]


@dataclass(frozen=True, eq=False)
class Contents:
    """A model as far as its headers are known. `shards` and `missing` name files; a file that is not split has none.

    `split_error` says why the shards do not belong together, if so.
    """

    header: Header
    tensors: dict[str, TensorInfo]
    size_bytes: int
    shards: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    split_error: str | None = None

    @property
    def is_split(self) -> bool:
        """Whether it is one of several files."""
        return bool(self.shards or self.missing)

    @cached_property
    def head(self) -> Head | None:
        """Its MTP head. The blocks of a drafter of another kind are none, whatever their tensors are called."""
        return None if self.architecture.drafts_for else find_head(self.tensors.values())

    @cached_property
    def trunk(self) -> tuple[int, ...]:
        """Numbers of the blocks that are not of the head."""
        return trunk_blocks(self.tensors.values())

    @property
    def blocks(self) -> tuple[int, ...]:
        """Numbers of all blocks."""
        return tuple(sorted({*self.trunk, *(self.head.blocks if self.head else ())}))

    @property
    def architecture(self) -> Architecture:
        """What llama.cpp does with its architecture."""
        return architecture_of(self.header.architecture)

    @property
    def announced_blocks(self) -> int | None:
        """`block_count`: trunk and head."""
        return self.integer("block_count")

    @property
    def announced_heads(self) -> int:
        """`nextn_predict_layers`, as llama.cpp counts them."""
        heads = self.integer("nextn_predict_layers") or 0
        is_trunk = self.head is None and len(self.trunk) == self.announced_blocks
        return 0 if is_trunk and self.architecture.absent_head_is_trunk else heads

    def integer(self, name: str) -> int | None:
        """The value of `<architecture>.<name>` where that is one whole number."""
        return self.header.integer(self.header.arch_key(name))

    @cached_property
    def role(self) -> Role:
        """What the file is, told from its tensors; from its keys where it has none that tell."""
        header = self.header
        kind = header.text("general.type")
        if _EMBEDDINGS not in self.tensors:
            if "imatrix" in (kind, header.architecture) or any(k.startswith("imatrix.") for k in header.keys):
                return "imatrix"
            if kind == "adapter" or "adapter.type" in header.keys:
                return "adapter"
        if header.architecture == "clip" or kind == "mmproj":
            return "mmproj"
        if not self.tensors:
            return "vocabulary" if {MODEL, TOKENS} & header.keys.keys() else "other"
        if self.architecture.drafts_for:
            return "drafter"
        if self.head and not self.trunk:
            return "drafter" if _EMBEDDINGS in self.tensors else "donor"
        return "model" if _EMBEDDINGS in self.tensors or self.trunk else "other"


def contents_of(model: GgufModel) -> Contents:
    """The contents of a whole model."""
    names = tuple(shard.path.name for shard in model.shards)
    tensors = {name: info for name, (_, info) in model.tensors.items()}
    return Contents(model.header, tensors, model.size_bytes, names if len(names) > 1 else ())


def contents_of_headers(headers: Sequence[Header], missing: Sequence[str] = ()) -> Contents:
    """The contents of a model of which the headers of some shards are known, in their order.

    Shards that do not belong together are no error here; a tensor in two of them counts once.
    """
    shards = [Shard(Path(header.source_name), header) for header in headers]
    names = tuple(header.source_name for header in headers)
    tensors = {name: info for header in headers for name, info in header.tensors.items()}
    split_error = None
    if not missing:
        try:
            model_of(shards)
        except SlipstreamError as e:
            split_error = e.message
    return Contents(
        headers[0],
        tensors,
        sum(header.file_bytes for header in headers),
        names if len(names) > 1 or missing else (),
        tuple(missing),
        split_error,
    )


def contents_of_file(path: Path) -> Contents:
    """The contents of the model that a file, or any shard of a split one, belongs to, as far as it is there.

    SlipstreamError not_found where the file itself is not, invalid_gguf for a shard that is no GGUF file.
    """
    if not path.is_file():
        raise SlipstreamError(Code.NOT_FOUND, f"there is no file {path.name!r}")
    header = read_file(path)
    paths = shard_paths(path, header)
    present = [p for p in paths if p.is_file()]
    headers = [header if p == path else read_file(p) for p in present]
    return contents_of_headers(headers, [p.name for p in paths if p not in present])
