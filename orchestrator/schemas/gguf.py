"""GGUF files: what is in a header, what a graft would do."""

from typing import Literal

from pydantic import Field

from orchestrator.schemas.base import View


class Problem(View):
    """Something that is wrong with a file, or with a pair of files."""

    code: str = Field(
        description="Stable word, such as `missing_head_tensor` or `vocabulary_differs`.",
        examples=["missing_head_tensor"],
    )
    severity: Literal["error", "warning"] = Field(
        description="An error makes llama-server abort or not draft.", examples=["error"]
    )
    message: str = Field(
        description="What is wrong, with which value, and what would be right.",
        examples=["the head of block 24 lacks blk.24.nextn.eh_proj.weight"],
    )


class Tokenizer(View):
    """The tokenizer of a file."""

    model: str = Field(description="`tokenizer.ggml.model`.", examples=["gpt2"])
    pre: str | None = Field(None, description="`tokenizer.ggml.pre`.", examples=["smollm"])
    tokens: int = Field(description="Tokens in the vocabulary.", examples=[49152])
    bos_token_id: int | None = Field(None, description="Id of the first token of a text.", examples=[1])
    eos_token_id: int | None = Field(None, description="Id of the end of a text.", examples=[2])
    fingerprint: str = Field(
        description="sha256 over model, pre-tokenizer, tokens, types, merges and special ids.",
        examples=["b179c952d3cd70cd7a3a7ea6ac2cd9a1a9a2c9e9a1d41b3bbef3a9d84ad3ba28"],
    )


class MtpHead(View):
    """The multi-token-prediction head of a file."""

    blocks: tuple[int, ...] = Field(description="Block indices of its tensors.", examples=[[24]])
    tensors: int = Field(description="Number of its tensors.", examples=[16])
    size_bytes: int = Field(description="Bytes of its tensors.", examples=[461373440])
    types: dict[str, int] = Field(description="Tensors by type, such as Q8_0.", examples=[{"Q8_0": 9, "F32": 7}])
    own_embeddings: bool = Field(description="Whether it brings its own token embeddings.", examples=[False])
    own_output: bool = Field(description="Whether it brings its own output matrix.", examples=[False])
    missing: tuple[str, ...] = Field(
        (), description="Tensors it needs and lacks.", examples=[["blk.24.nextn.eh_proj.weight"]]
    )


class MemoryEstimate(View):
    """What serving a file takes, by arithmetic on its header; measured figures differ by some percent."""

    ctx_tokens: int = Field(description="Context size it was estimated for, all sequences together.", examples=[4096])
    sequences: int = Field(1, description="Sequences it was estimated for.", examples=[1])
    weights_bytes: int = Field(description="Tensors, without those of an MTP head.", examples=[91553792])
    head_bytes: int = Field(0, description="Tensors of the MTP head, loaded for draft-mtp alone.", examples=[461373440])
    kv_bytes: int = Field(description="Keys and values of attention, f16.", examples=[94371840])
    head_kv_bytes: int = Field(
        0, description="Keys and values of the MTP head, kept for draft-mtp alone.", examples=[16777216]
    )
    recurrent_bytes: int = Field(description="State of recurrent layers.", examples=[19660800])
    compute_bytes: int = Field(description="Rough size of the compute buffers.", examples=[104857600])
    total_bytes: int = Field(description="All of it.", examples=[290783232])


class Inspection(View):
    """What a GGUF header says."""

    file: str = Field(
        description="Name of the file; of a split file, of its first shard.",
        examples=["SmolLM2-135M-Instruct.Q4_1.gguf"],
    )
    size_bytes: int = Field(description="Bytes of all shards.", examples=[98314240])
    header_bytes: int = Field(description="Bytes before the tensor data, of the first shard.", examples=[1787264])
    version: int = Field(description="GGUF version.", examples=[3])
    alignment: int = Field(description="Alignment of tensor data, bytes.", examples=[32])
    architecture: str = Field(description="`general.architecture`.", examples=["llama"])
    name: str | None = Field(None, description="`general.name`.", examples=["SmolLM2 135M Instruct"])
    role: Literal["model", "drafter", "donor", "mmproj", "vocabulary", "adapter", "imatrix", "other"] = Field(
        description="What the file is, told from its tensors.", examples=["model"]
    )
    blocks: int | None = Field(None, description="Blocks in all, told from the tensors.", examples=[30])
    trunk_blocks: int | None = Field(None, description="Blocks without those of the head.", examples=[30])
    embedding_length: int | None = Field(None, description="Width of the model.", examples=[576])
    context_length: int | None = Field(None, description="Context it was trained for, tokens.", examples=[8192])
    kind: Literal["attention", "hybrid", "recurrent"] = Field(
        description="How it keeps what it has read.", examples=["attention"]
    )
    drafts_with_mtp: bool = Field(
        description="Whether the pinned llama.cpp drafts with this architecture's MTP head.", examples=[False]
    )
    head: MtpHead | None = Field(None, description="Its MTP head.")
    tokenizer: Tokenizer | None = Field(None, description="Its tokenizer.")
    tensors: int = Field(description="Number of tensors of all shards.", examples=[272])
    types: dict[str, int] = Field(description="Tensors by type.", examples=[{"Q4_1": 210, "F32": 61, "Q8_0": 1}])
    type_bytes: dict[str, int] = Field(
        description="Bytes by type.", examples=[{"Q4_1": 66355200, "F32": 140544, "Q8_0": 30081024}]
    )
    quant: str | None = Field(None, description="The type that holds most bytes.", examples=["Q4_1"])
    shards: tuple[str, ...] = Field(
        (),
        description="Names of all shards of a split file.",
        examples=[["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]],
    )
    missing_shards: tuple[str, ...] = Field(
        (), description="Shards that are not there.", examples=[["big-00002-of-00002.gguf"]]
    )
    memory: MemoryEstimate | None = Field(None, description="What serving it takes.")
    provenance: dict[str, str] = Field(
        default_factory=dict,
        description="Keys `slipstream.*`.",
        examples=[{"slipstream.graft.donor": "mtp-head-Q8_0.gguf"}],
    )
    problems: tuple[Problem, ...] = Field((), description="What is wrong with it.")


class KeyChange(View):
    """A key that is added, changed or dropped."""

    key: str = Field(description="The key.", examples=["qwen35.nextn_predict_layers"])
    type: str = Field(description="Its GGUF type, such as UINT32 or ARRAY[INT32].", examples=["UINT32"])
    before: str | None = Field(None, description="Its value in the input; null where it has none.", examples=["0"])
    after: str | None = Field(None, description="Its value in the result; null where it goes.", examples=["1"])


class TensorChange(View):
    """A tensor that a graft brings."""

    name: str = Field(description="Its name in the result.", examples=["blk.24.nextn.eh_proj.weight"])
    donor_name: str = Field(description="Its name in the donor.", examples=["blk.24.nextn.eh_proj.weight"])
    type: str = Field(description="Its type, kept as the donor has it.", examples=["Q8_0"])
    shape: tuple[int, ...] = Field(description="Its dimensions, fastest first.", examples=[[2048, 1024]])
    size_bytes: int = Field(description="Its bytes.", examples=[2228224])
    replaces: bool = Field(False, description="Whether a tensor of the base goes for it.", examples=[False])


class GraftPlan(View):
    """What a graft would do: every tensor and key it adds or changes."""

    architecture: str = Field(description="Of base and donor.", examples=["qwen35"])
    base_blocks: int = Field(description="Trunk blocks of the base.", examples=[24])
    head_blocks: int = Field(description="Blocks of the head.", examples=[1])
    keys: tuple[KeyChange, ...] = Field(description="In the order of the result.")
    tensors: tuple[TensorChange, ...] = Field(description="In the order of the result.")
    untouched_keys: int = Field(description="Keys that stay byte for byte.", examples=[41])
    untouched_tensors: int = Field(description="Tensors that stay byte for byte.", examples=[320])
    outputs: tuple[str, ...] = Field((), description="Names of the files of the result.", examples=[["base+head.gguf"]])
    size_bytes: int = Field(description="Bytes of the result.", examples=[1288490188])
    nothing_to_do: bool = Field(
        False, description="Whether the base holds exactly this head already.", examples=[False]
    )
    warnings: tuple[str, ...] = Field(
        (),
        description="What an operator should know.",
        examples=[["the donor was made from another quant of the base"]],
    )


class Extraction(View):
    """What was taken out of a model: its head, or what is left without it."""

    kind: Literal["donor", "drafter", "trunk"] = Field(description="What the result is.", examples=["donor"])
    architecture: str = Field(description="Of input and result.", examples=["qwen35"])
    trunk_blocks: int = Field(description="Trunk blocks of the input, told from its tensors.", examples=[24])
    head_blocks: int = Field(description="Blocks of the head.", examples=[1])
    keys: tuple[KeyChange, ...] = Field(description="Keys that change or go, but for those left out as a kind.")
    tensors: int = Field(description="Tensors of the result.", examples=[16])
    outputs: tuple[str, ...] = Field(description="Names of the files of the result.", examples=[["head.gguf"]])
    size_bytes: int = Field(description="Bytes of the result.", examples=[461373440])
