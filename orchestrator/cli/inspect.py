"""`slipstream inspect` and `preflight`: what GGUF headers say, of files here without an orchestrator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.cli.invocation import Output, invoked, plain
from orchestrator.cli.options import Json, Url, parse_types
from orchestrator.client import Client
from orchestrator.gguf.inspect import inspect_file
from orchestrator.gguf.preflight import preflight as find_problems
from orchestrator.schemas import AddRequest, HfSource, Inspection, InspectRequest, Problem, Source, UrlSource
from orchestrator.units import in_bytes

_ADDRESSES = ("http://", "https://")
_HF = "hf:"
# The name of a model file that is never written.
_NO_MODELS_NAME = "slipstream-inspect"
_STYLE = {"error": "bold red", "warning": "yellow"}


def inspect(
    ctx: typer.Context,
    file: Annotated[
        str,
        typer.Argument(help="GGUF file, of a split one any shard; or hf:owner/name@revision:FILE, or a URL."),
    ],
    ctx_tokens: Annotated[
        int, typer.Option("--ctx", min=1, max=1 << 24, help="Context size for the memory estimate, tokens.")
    ] = 4096,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Say what is in a GGUF file, and what is wrong with it. What is not here is read where it is, not fetched."""
    if not file.startswith((_HF, *_ADDRESSES)):
        _show(Output(as_json), inspect_file(Path(file), ctx_tokens))
        return
    with invoked(ctx, url, as_json) as cli:
        body = InspectRequest.model_construct(source=_source(cli.client, file), ctx_tokens=ctx_tokens)
        _show(cli, cli.client.inspect(body))


def preflight(
    model: Annotated[Path, typer.Argument(help="GGUF file of the model.")],
    drafter: Annotated[Path | None, typer.Option("--drafter", help="GGUF file of the drafter (-md).")] = None,
    spec_types: Annotated[
        list[str] | None,
        typer.Option("--spec-type", help="Speculative type, or several with commas; may be repeated. Without: none."),
    ] = None,
    n_max: Annotated[int | None, typer.Option("--n-max", min=0, help="Longest draft, tokens.")] = None,
    as_json: Json = False,
) -> None:
    """Say what would keep llama-server from loading these files or drafting with them (exit status 1)."""
    problems = find_problems(model, drafter, parse_types(spec_types), n_max)
    output = Output(as_json)
    if as_json:
        output.emit([problem.model_dump(mode="json") for problem in problems])
    else:
        _show_problems(output, problems)
        if not problems:
            output.say("nothing found")
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(1)


def _source(client: Client, text: str) -> Source:
    """What an argument names. Of a repository without a file, the orchestrator says which one is the model."""
    if text.startswith(_ADDRESSES):
        return UrlSource.model_construct(url=text)
    repository, _, file = text.removeprefix(_HF).partition(":")
    if not file.endswith(".gguf"):
        origin = AddRequest.model_construct(origin=text, drafter="none", name=_NO_MODELS_NAME)
        return client.add(origin, dry_run=True).spec.source
    repository, _, revision = repository.partition("@")
    return HfSource.model_construct(hf=repository, file=file, revision=revision or None)


def _show(output: Output, seen: Inspection) -> None:
    if output.is_json:
        output.emit(seen)
        return
    rows = [(name, text) for name, text in _rows(seen) if text]
    width = max(len(name) for name, _ in rows) + 3
    for name, text in rows:
        output.out.print(Text.assemble((plain(name).ljust(width), "bold"), plain(text)), soft_wrap=True)
    _show_problems(output, seen.problems)


def _show_problems(output: Output, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        label = (f"{problem.severity} {problem.code}: ", _STYLE[problem.severity])
        output.out.print(Text.assemble(label, plain(problem.message)), soft_wrap=True)


def _rows(seen: Inspection) -> Iterator[tuple[str, str]]:
    shards = f" in {len(seen.shards)} shards" if seen.shards else ""
    yield "file", f"{seen.file}, {in_bytes(seen.size_bytes)}{shards}, GGUF {seen.version}, alignment {seen.alignment}"
    yield "role", seen.role
    yield "name", seen.name or ""
    yield "architecture", f"{seen.architecture}, {seen.kind}" if seen.architecture else ""
    if seen.blocks is not None:
        width = f", {seen.embedding_length} wide" if seen.embedding_length else ""
        yield "blocks", f"{seen.trunk_blocks} of the trunk{width}"
    yield "context", f"{seen.context_length} tokens trained" if seen.context_length else ""
    if (head := seen.head) is not None:
        own = [name for name, has in (("embeddings", head.own_embeddings), ("output", head.own_output)) if has]
        drafts = "" if seen.drafts_with_mtp else "; llama.cpp does not draft with it"
        yield (
            "MTP head",
            f"block {', '.join(map(str, head.blocks[:8]))}: {head.tensors} tensors, {in_bytes(head.size_bytes)}, "
            f"{_types(head.types)}; own {' and '.join(own) or 'embeddings and output: no'}{drafts}",
        )
    if (tokenizer := seen.tokenizer) is not None:
        pre = f" {tokenizer.pre}" if tokenizer.pre else ""
        ids = (("bos", tokenizer.bos_token_id), ("eos", tokenizer.eos_token_id))
        ends = ", ".join(f"{name} {'none' if number is None else number}" for name, number in ids)
        yield "tokenizer", f"{tokenizer.model}{pre}, {tokenizer.tokens} tokens, {ends}, {tokenizer.fingerprint[:12]}"
    yield "tensors", f"{seen.tensors}: {_types(seen.types, seen.type_bytes)}" if seen.tensors else ""
    if (memory := seen.memory) is not None:
        parts = {
            "weights": memory.weights_bytes,
            "head": memory.head_bytes,
            "KV": memory.kv_bytes,
            "KV of the head": memory.head_kv_bytes,
            "state": memory.recurrent_bytes,
            "compute": memory.compute_bytes,
        }
        summed = " + ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
        yield f"memory at {memory.ctx_tokens}", f"{in_bytes(memory.total_bytes)} = {summed}"
    yield from seen.provenance.items()


def _types(types: dict[str, int], sizes: dict[str, int] | None = None) -> str:
    return ", ".join(
        f"{count} {name}" + (f" ({in_bytes(sizes[name])})" if sizes and name in sizes else "")
        for name, count in types.items()
    )
