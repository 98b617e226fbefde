"""A whole model as its tensors show it, and whether its keys agree with them (field case 12)."""

from dataclasses import dataclass

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import Architecture, architecture_of
from orchestrator.gguf.arrays import Depth
from orchestrator.gguf.head import Head, find_head, trunk_blocks
from orchestrator.gguf.header import Header, TensorInfo
from orchestrator.gguf.model import GgufModel

BLOCK_COUNT, HEAD_COUNT = "block_count", "nextn_predict_layers"
TOKEN_EMBEDDINGS = "token_embd.weight"
# LLAMA_MAX_LAYERS (src/llama-hparams.h).
MAX_BLOCKS = 512


@dataclass(frozen=True, eq=False)
class WholeModel:
    """A model with a trunk. `head` is there or not; a model without one may announce one all the same, as trunks do
    whose head is kept in a file of its own."""

    model: GgufModel
    arch: Architecture
    depth: Depth
    head: Head | None

    @property
    def header(self) -> Header:
        """Header of the first file."""
        return self.model.header

    @property
    def name(self) -> str:
        """Name of the first file, for messages."""
        return self.model.header.source_name

    @property
    def width(self) -> int:
        """`embedding_length`, told from the token embeddings."""
        return self.model.tensors[TOKEN_EMBEDDINGS][1].shape[0]

    @property
    def vocabulary_tokens(self) -> int:
        """Rows of the token embeddings."""
        return int(self.model.tensors[TOKEN_EMBEDDINGS][1].shape[-1])


def tensors_of(model: GgufModel) -> list[TensorInfo]:
    """The tensors of all shards, in order."""
    return [info for _, info in model.tensors.values()]


def whole_model(model: GgufModel) -> WholeModel:
    """A model looked at as a base. SlipstreamError graft_refused with the numbers where it is none, or where
    block_count, nextn_predict_layers and the tensors disagree."""
    header, tensors = model.header, tensors_of(model)
    name = header.source_name
    if not model.architecture:
        raise refused(f"{name} does not say its general.architecture", key="general.architecture")
    trunk, head = trunk_blocks(tensors), find_head(tensors)
    if not trunk or TOKEN_EMBEDDINGS not in model.tensors or len(model.tensors[TOKEN_EMBEDDINGS][1].shape) != 2:
        what = "no blocks but those of an MTP head" if not trunk else f"no {TOKEN_EMBEDDINGS} of two dimensions"
        raise refused(f"{name} is no whole model: it has {what}", tensor=TOKEN_EMBEDDINGS)
    if trunk[-1] != len(trunk) - 1:
        gap = next(i for i, block in enumerate(trunk) if i != block)
        raise refused(
            f"{name} has tensors of {len(trunk)} trunk blocks up to blk.{trunk[-1]}, and none of blk.{gap}",
            tensor=f"blk.{gap}.",
        )
    arch = architecture_of(model.architecture)
    depth = _depth(header, len(trunk), head, arch)
    if depth.blocks > MAX_BLOCKS:
        raise refused(
            f"{name} has {depth.blocks} blocks, expected {MAX_BLOCKS} at most", key=header.arch_key(BLOCK_COUNT)
        )
    return WholeModel(model, arch, depth, head)


def refused(message: str, *, hint: str | None = None, **details: str) -> SlipstreamError:
    """A refusal; `details` name the key or tensor."""
    return SlipstreamError(Code.GRAFT_REFUSED, message, hint=hint, details=dict(details))


def _depth(header: Header, trunk: int, head: Head | None, arch: Architecture) -> Depth:
    key = header.arch_key(BLOCK_COUNT)
    blocks, announced = header.integer(key), header.integer(header.arch_key(HEAD_COUNT)) or 0
    if head is None and arch.absent_head_is_trunk and blocks == trunk:
        announced = 0
    heads = len(head.blocks) if head else 0
    if head and head.blocks != tuple(range(trunk, trunk + heads)):
        raise refused(
            f"{header.source_name} has the tensors of an MTP head in blk.{head.blocks[0]}, expected them after its "
            f"{trunk} trunk blocks",
            tensor=head.tensors[0].name,
        )
    if blocks != trunk + announced or announced < 0 or (head and announced != heads):
        raise refused(
            f"{header.source_name} is not consistent: {key} is {blocks}, {header.arch_key(HEAD_COUNT)} is {announced}, "
            f"but it has tensors of {trunk} trunk blocks and {heads} head blocks",
            hint="block_count should be trunk and head together, nextn_predict_layers the head's blocks",
            key=key,
        )
    return Depth(trunk, announced)
