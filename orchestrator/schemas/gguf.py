"""GGUF files: what is in a header, what a graft would do."""

from typing import Literal

from pydantic import Field

from orchestrator.schemas.base import View


class Problem(View):
    """Something that is wrong with a file, or with a pair of files."""

    code: str = Field(description="Stable word, such as `missing_head_tensor` or `vocabulary_differs`.")
    severity: Literal["error", "warning"] = Field(description="An error makes llama-server abort or not draft.")
    message: str = Field(description="What is wrong, with which value, and what would be right.")


class Tokenizer(View):
    """The tokenizer of a file."""

    model: str = Field(description="`tokenizer.ggml.model`.")
    pre: str | None = Field(None, description="`tokenizer.ggml.pre`.")
    tokens: int = Field(description="Tokens in the vocabulary.")
    bos_token_id: int | None = Field(None, description="Id of the first token of a text.")
    eos_token_id: int | None = Field(None, description="Id of the end of a text.")
    fingerprint: str = Field(description="sha256 over model, pre-tokenizer, tokens, types, merges and special ids.")


class MtpHead(View):
    """The multi-token-prediction head of a file."""

    blocks: tuple[int, ...] = Field(description="Block indices of its tensors.")
    tensors: int = Field(description="Number of its tensors.")
    size_bytes: int = Field(description="Bytes of its tensors.")
    types: dict[str, int] = Field(description="Tensors by type, such as Q8_0.")
    own_embeddings: bool = Field(description="Whether it brings its own token embeddings.")
    own_output: bool = Field(description="Whether it brings its own output matrix.")
    missing: tuple[str, ...] = Field((), description="Tensors it needs and lacks.")


class MemoryEstimate(View):
    """What serving a file takes, by arithmetic on its header; measured figures differ by some percent."""

    ctx_tokens: int = Field(description="Context size it was estimated for, all sequences together.")
    sequences: int = Field(1, description="Sequences it was estimated for.")
    weights_bytes: int = Field(description="Tensors, without those of an MTP head.")
    head_bytes: int = Field(0, description="Tensors of the MTP head, loaded for draft-mtp alone.")
    kv_bytes: int = Field(description="Keys and values of attention, f16.")
    head_kv_bytes: int = Field(0, description="Keys and values of the MTP head, kept for draft-mtp alone.")
    recurrent_bytes: int = Field(description="State of recurrent layers.")
    compute_bytes: int = Field(description="Rough size of the compute buffers.")
    total_bytes: int = Field(description="All of it.")


class Inspection(View):
    """What a GGUF header says."""

    file: str = Field(description="Name of the file; of a split file, of its first shard.")
    size_bytes: int = Field(description="Bytes of all shards.")
    header_bytes: int = Field(description="Bytes before the tensor data, of the first shard.")
    version: int = Field(description="GGUF version.")
    alignment: int = Field(description="Alignment of tensor data, bytes.")
    architecture: str = Field(description="`general.architecture`.")
    name: str | None = Field(None, description="`general.name`.")
    role: Literal["model", "drafter", "donor", "mmproj", "vocabulary", "adapter", "imatrix", "other"] = Field(
        description="What the file is, told from its tensors."
    )
    blocks: int | None = Field(None, description="Blocks in all, told from the tensors.")
    trunk_blocks: int | None = Field(None, description="Blocks without those of the head.")
    embedding_length: int | None = Field(None, description="Width of the model.")
    context_length: int | None = Field(None, description="Context it was trained for, tokens.")
    kind: Literal["attention", "hybrid", "recurrent"] = Field(description="How it keeps what it has read.")
    drafts_with_mtp: bool = Field(description="Whether the pinned llama.cpp drafts with this architecture's MTP head.")
    head: MtpHead | None = Field(None, description="Its MTP head.")
    tokenizer: Tokenizer | None = Field(None, description="Its tokenizer.")
    tensors: int = Field(description="Number of tensors of all shards.")
    types: dict[str, int] = Field(description="Tensors by type.")
    type_bytes: dict[str, int] = Field(description="Bytes by type.")
    quant: str | None = Field(None, description="The type that holds most bytes.")
    shards: tuple[str, ...] = Field((), description="Names of all shards of a split file.")
    missing_shards: tuple[str, ...] = Field((), description="Shards that are not there.")
    memory: MemoryEstimate | None = Field(None, description="What serving it takes.")
    provenance: dict[str, str] = Field(default_factory=dict, description="Keys `slipstream.*`.")
    problems: tuple[Problem, ...] = Field((), description="What is wrong with it.")


class KeyChange(View):
    """A key that is added, changed or dropped."""

    key: str = Field(description="The key.")
    type: str = Field(description="Its GGUF type, such as UINT32 or ARRAY[INT32].")
    before: str | None = Field(None, description="Its value in the input; null where it has none.")
    after: str | None = Field(None, description="Its value in the result; null where it goes.")


class TensorChange(View):
    """A tensor that a graft brings."""

    name: str = Field(description="Its name in the result.")
    donor_name: str = Field(description="Its name in the donor.")
    type: str = Field(description="Its type, kept as the donor has it.")
    shape: tuple[int, ...] = Field(description="Its dimensions, fastest first.")
    size_bytes: int = Field(description="Its bytes.")
    replaces: bool = Field(False, description="Whether a tensor of the base goes for it.")


class GraftPlan(View):
    """What a graft would do: every tensor and key it adds or changes."""

    architecture: str = Field(description="Of base and donor.")
    base_blocks: int = Field(description="Trunk blocks of the base.")
    head_blocks: int = Field(description="Blocks of the head.")
    keys: tuple[KeyChange, ...] = Field(description="In the order of the result.")
    tensors: tuple[TensorChange, ...] = Field(description="In the order of the result.")
    untouched_keys: int = Field(description="Keys that stay byte for byte.")
    untouched_tensors: int = Field(description="Tensors that stay byte for byte.")
    outputs: tuple[str, ...] = Field((), description="Names of the files of the result.")
    size_bytes: int = Field(description="Bytes of the result.")
    nothing_to_do: bool = Field(False, description="Whether the base holds exactly this head already.")
    warnings: tuple[str, ...] = Field((), description="What an operator should know.")


class Extraction(View):
    """What was taken out of a model: its head, or what is left without it."""

    kind: Literal["donor", "drafter", "trunk"] = Field(description="What the result is.")
    architecture: str = Field(description="Of input and result.")
    trunk_blocks: int = Field(description="Trunk blocks of the input, told from its tensors.")
    head_blocks: int = Field(description="Blocks of the head.")
    keys: tuple[KeyChange, ...] = Field(description="Keys that change or go, but for those left out as a kind.")
    tensors: int = Field(description="Tensors of the result.")
    outputs: tuple[str, ...] = Field(description="Names of the files of the result.")
    size_bytes: int = Field(description="Bytes of the result.")
