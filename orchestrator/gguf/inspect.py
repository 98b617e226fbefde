"""What the headers of a model say, in one view."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.gguf.contents import Contents, contents_of, contents_of_file, contents_of_headers
from orchestrator.gguf.head import EMBED_TOKENS, SHARED_HEAD_HEAD
from orchestrator.gguf.header import Array, Header, KeyValue
from orchestrator.gguf.memory import DEFAULT_CTX_TOKENS, Setup, estimate_memory
from orchestrator.gguf.model import SPLIT_COUNT, GgufModel
from orchestrator.gguf.problem import warning
from orchestrator.gguf.problems import file_problems, head_problems, missing_head_tensors, model_problems
from orchestrator.gguf.tokenizer import shown, tokenizer_of
from orchestrator.gguf.writer import PADDING_KEY
from orchestrator.schemas.gguf import Inspection, MtpHead, Problem

PROVENANCE_PREFIX = "slipstream."


def inspect_file(path: Path, ctx_tokens: int = DEFAULT_CTX_TOKENS) -> Inspection:
    """The model that a file, or any shard of a split one, belongs to; shards that are missing are a problem in it.

    SlipstreamError not_found or invalid_gguf where the file is not there or no GGUF file.
    """
    return _inspect(contents_of_file(path), ctx_tokens)


def inspect_model(model: GgufModel, ctx_tokens: int = DEFAULT_CTX_TOKENS) -> Inspection:
    """A model that was opened whole."""
    return _inspect(contents_of(model), ctx_tokens)


def inspect_header(header: Header, ctx_tokens: int = DEFAULT_CTX_TOKENS) -> Inspection:
    """A file of which only the header is at hand, such as a remote one."""
    return inspect_headers([header], (), ctx_tokens)


def inspect_headers(
    headers: Sequence[Header], missing: Sequence[str] = (), ctx_tokens: int = DEFAULT_CTX_TOKENS
) -> Inspection:
    """A model of which the headers of some shards are at hand, in their order; `missing` names the other shards."""
    return _inspect(contents_of_headers(headers, missing), ctx_tokens)


def _inspect(contents: Contents, ctx_tokens: int) -> Inspection:
    header = contents.header
    types = Counter(tensor.type.name for tensor in contents.tensors.values())
    type_bytes: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        type_bytes[tensor.type.name] += tensor.size_bytes
    return Inspection(
        file=header.source_name,
        size_bytes=contents.size_bytes,
        header_bytes=header.header_bytes,
        version=header.version,
        alignment=header.alignment,
        architecture=shown(header.architecture),
        name=None if (name := header.text("general.name")) is None else shown(name),
        role=contents.role,
        blocks=len(contents.blocks) or None,
        trunk_blocks=len(contents.trunk) if contents.blocks else None,
        embedding_length=contents.integer("embedding_length"),
        context_length=contents.integer("context_length"),
        kind=contents.architecture.kind,
        drafts_with_mtp=contents.architecture.drafts_with_mtp,
        head=_head(contents),
        tokenizer=tokenizer_of(header),
        tensors=len(contents.tensors),
        types=dict(types.most_common()),
        type_bytes=dict(type_bytes.most_common()),
        quant=type_bytes.most_common(1)[0][0] if type_bytes else None,
        shards=contents.shards,
        missing_shards=contents.missing,
        memory=estimate_memory(contents, Setup(ctx_tokens)),
        provenance=_provenance(header),
        problems=tuple(_problems(contents)),
    )


def _head(contents: Contents) -> MtpHead | None:
    if (head := contents.head) is None:
        return None
    return MtpHead(
        blocks=head.blocks,
        tensors=len(head.tensors),
        size_bytes=head.size_bytes,
        types=dict(Counter(tensor.type.name for tensor in head.tensors).most_common()),
        own_embeddings=head.has(EMBED_TOKENS),
        own_output=head.has(SHARED_HEAD_HEAD),
        missing=missing_head_tensors(contents),
    )


def _provenance(header: Header) -> dict[str, str]:
    found = {name: entry for name, entry in header.keys.items() if name.startswith(PROVENANCE_PREFIX)}
    return {shown(name): _plain(entry) for name, entry in found.items() if name != PADDING_KEY}


def _plain(entry: KeyValue) -> str:
    value = entry.value
    return f"{len(value)} values" if isinstance(value, Array) else shown(str(value))


def _problems(contents: Contents) -> Iterator[Problem]:
    yield from file_problems(contents)
    if contents.role in ("model", "drafter"):
        yield from model_problems(contents)
        yield from head_problems(contents)
    elif contents.role == "donor":
        yield from head_problems(contents)
    shards = contents.header.integer(SPLIT_COUNT) or 1
    if shards > 1 and not contents.shards and not contents.split_error:
        yield warning("shard_alone", f"the file is one of {shards} shards, and the others were not looked at")
