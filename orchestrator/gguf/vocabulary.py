"""What is wrong with a vocabulary by itself: what llama.cpp does not load (src/llama-vocab.cpp)."""

from collections.abc import Iterator

from orchestrator.gguf.contents import Contents
from orchestrator.gguf.header import Header
from orchestrator.gguf.known import KNOWN_PRE_TOKENIZERS, KNOWN_TOKENIZERS
from orchestrator.gguf.problem import error
from orchestrator.gguf.tokenizer import MODEL, PRE, TOKENS, TYPES, WITHOUT_TOKENS, shown
from orchestrator.gguf.types import ValueType
from orchestrator.schemas.gguf import Problem

_MERGES, _SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.scores"
_WITH_PRE_TOKENIZER = frozenset({"gpt2", "hybriddna", "whitespace"})
_WITH_MERGES = _WITH_PRE_TOKENIZER | {"gemma4"}


def vocabulary_problems(contents: Contents) -> Iterator[Problem]:
    """What keeps llama.cpp from loading a model for its vocabulary, or for the embeddings of it."""
    header = contents.header
    embedding = contents.tensors.get("token_embd.weight")
    wide, rows = (*embedding.shape, 1, 1)[:2] if embedding is not None else (0, 0)
    if embedding is not None and (width := contents.integer("embedding_length")) != wide:
        yield error("width_disagrees", f"embedding_length is {width}, but token_embd.weight is {wide} wide")
    model, tokens = header.text(MODEL), header.array(TOKENS)
    if model in WITHOUT_TOKENS:
        return
    if model is None or tokens is None or tokens.type is not ValueType.STRING:
        yield error("vocabulary_missing", f"there is no {MODEL if model is None else TOKENS}; llama.cpp needs both")
        return
    yield from _tokenizer_problems(header, model)
    for key in (_SCORES, TYPES):
        array = header.array(key)
        if array is not None and len(array) < len(tokens):
            yield error("array_length", f"{key} has {len(array)} values for {len(tokens)} tokens")
    if embedding is not None and rows != len(tokens):
        yield error(
            "vocabulary_size_disagrees",
            f"token_embd.weight has {rows} rows, but the tokenizer {len(tokens)} tokens; llama.cpp takes no other than "
            "one row a token",
        )


def repeated_tokens(header: Header) -> Iterator[Problem]:
    """Tokens of the same text, at which llama.cpp aborts. Apart from the rest, since it looks at every token."""
    tokens = header.array(TOKENS)
    if tokens is None or tokens.type is not ValueType.STRING or header.text(MODEL) in WITHOUT_TOKENS:
        return
    seen: set[bytes] = set()
    for number, whole in enumerate(tokens.strings()):
        # llama.cpp reads a token up to its first NUL, and gives each empty one a name of its own.
        text = whole.partition(b"\0")[0]
        if text in seen:
            yield error(
                "vocabulary_repeats", f"token {number}, {shown(text, 40)!r}, has the text of another: llama.cpp aborts"
            )
            return
        if text:
            seen.add(text)


def _tokenizer_problems(header: Header, model: str) -> Iterator[Problem]:
    pre = header.text(PRE)
    if model not in KNOWN_TOKENIZERS:
        yield error("unknown_tokenizer", f"llama.cpp at the pin does not know the tokenizer {shown(model, 40)!r}")
    elif model in _WITH_PRE_TOKENIZER and pre and pre not in KNOWN_PRE_TOKENIZERS:
        yield error("unknown_pre_tokenizer", f"llama.cpp at the pin does not know the pre-tokenizer {shown(pre, 40)!r}")
    if model in _WITH_MERGES and pre != "kimi-k2" and header.array(_MERGES) is None:
        yield error("merges_missing", f"there is no {_MERGES}, which a tokenizer of the model {model} needs")
