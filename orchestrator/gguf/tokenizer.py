"""Tokenizers: what one is known by, and whether a drafter speaks the ids of its target.

A drafter gets token ids and gives token ids, so the texts behind the ids decide. draft-simple looks at some of them
(llama.cpp, common_speculative_are_compatible), the other drafting types at none (llama.cpp#3812).
"""

import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.types import ValueType
from orchestrator.schemas.gguf import Problem, Tokenizer

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_BOS, _EOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"
# Tokenizer models of files that come without one.
WITHOUT_TOKENS = frozenset({"none", "no_vocab"})
# What turns text into ids and back, and where it ends; a chat template does not count.
_IDENTITY = (
    *(MODEL, PRE, TOKENS, "tokenizer.ggml.scores", TYPES, "tokenizer.ggml.merges", _BOS, _EOS),
    *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id"),
    *("tokenizer.ggml.seperator_token_id", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.cls_token_id"),
    *("tokenizer.ggml.mask_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"),
    *("tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"),
    *("tokenizer.ggml.escape_whitespaces", "tokenizer.ggml.precompiled_charsmap"),
)
# llama_token_type: unknown, control and unused tokens are no text that a model would write.
_UNUSED, _NO_TEXT = 5, frozenset({2, 3, 5})
_PADDING = re.compile(
    rb"[\[<]\|?[^\[\]<>]*(?:pad|unused|reserved|extra|dummy|placeholder)[^\[\]<>]*\|?[\]>]", re.IGNORECASE
)
# SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID of common/speculative.cpp.
MAX_SIZE_DIFFERENCE = 128
_FIRST_CHECKED_ID = 5
_SHOWN_BYTES = 40


def tokenizer_of(header: Header) -> Tokenizer | None:
    """The tokenizer of a file; None where it has none.

    Its fingerprint is the sha256 over name, length and bytes of each key of `_IDENTITY` that is there: strings and the
    elements of arrays as the file has them, numbers as decimal text, so that 1 is 1 in every integer type.
    """
    tokens, model = header.array(TOKENS), header.text(MODEL)
    if model is None and tokens is None:
        return None
    digest = hashlib.sha256()
    for key in _IDENTITY:
        if key in header.keys:
            content = _content(header, key)
            digest.update(f"{key} {len(content)}\n".encode())
            digest.update(content)
    return Tokenizer(
        model=shown(model or ""),
        pre=None if (pre := header.text(PRE)) is None else shown(pre),
        tokens=len(tokens) if tokens else 0,
        bos_token_id=header.integer(_BOS),
        eos_token_id=header.integer(_EOS),
        fingerprint=digest.hexdigest(),
    )


def compare_tokenizers(target: Header, drafter: Header, *, draft_simple: bool = False) -> tuple[Problem, ...]:
    """Where a drafter's tokenizer differs from its target's. Errors are what gives drafts of other tokens than meant;
    with `draft_simple` also what makes llama-server refuse to draft that way."""
    if drafter.array(TOKENS) is None and target.array(TOKENS) is None:
        return ()
    if drafter.text(MODEL) in WITHOUT_TOKENS and not draft_simple:
        return (_problem("vocabulary_missing", "warning", f"the drafter has no vocabulary ({TOKENS}) to compare"),)
    problems = [
        *_of_texts(target, drafter, draft_simple),
        *_of_tokens(target, drafter, draft_simple),
        *_of_first_and_last(target, drafter, draft_simple),
    ]
    if draft_simple:
        problems += _of_added_ids(target, drafter)
    return tuple(problems)


def shown(text: str | bytes, most: int = 200) -> str:
    """Text from a file for people: decoded, and cut where it is longer than `most`."""
    plain = text.decode(errors="replace") if isinstance(text, bytes) else text
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _content(header: Header, key: str) -> bytes | memoryview:
    value = header.value(key)
    return value.raw if isinstance(value, Array) else str(value).encode()


def _of_texts(target: Header, drafter: Header, draft_simple: bool) -> Iterator[Problem]:
    if target.text(MODEL) != drafter.text(MODEL):
        yield _problem(
            "tokenizer_model_differs",
            "error" if draft_simple else "warning",
            f"the drafter's tokenizer model is {_quoted(drafter, MODEL)}, the target's {_quoted(target, MODEL)}",
        )
    if target.text(PRE) != drafter.text(PRE):
        yield _problem(
            "pre_tokenizer_differs",
            "warning",
            f"the drafter's pre-tokenizer is {_quoted(drafter, PRE)}, the target's {_quoted(target, PRE)}; a drafter "
            "never splits text itself, but both may come from different models",
        )


def _of_tokens(target: Header, drafter: Header, draft_simple: bool) -> Iterator[Problem]:
    of_target, of_drafter = (_tokens(header) for header in (target, drafter))
    if of_target is None or of_drafter is None:
        which = "target" if of_target is None else "drafter"
        yield _problem("vocabulary_missing", "error", f"the {which} has no vocabulary ({TOKENS}) to compare")
        return
    if of_target.raw.tobytes() == of_drafter.raw.tobytes():
        return
    differing = [
        (number, *texts)
        for number, texts in enumerate(zip(of_target.strings(), of_drafter.strings(), strict=False))
        if texts[0] != texts[1]
    ]
    if differing:
        yield _different(target, drafter, differing, min(len(of_target), len(of_drafter)), draft_simple)
    if len(of_target) != len(of_drafter):
        yield _longer(target, drafter, of_target, of_drafter, draft_simple)


def _different(
    target: Header, drafter: Header, differing: list[tuple[int, bytes, bytes]], compared: int, draft_simple: bool
) -> Problem:
    number, text, other = differing[0]
    message = (
        f"token {number} is {_shown(text)} in the target and {_shown(other)} in the drafter; "
        f"{len(differing)} of {compared} tokens differ"
    )
    last = differing[-1][0]
    kinds = [_types(header, number, last + 1) or {} for header in (target, drafter)]
    # Some who publish quants rename special tokens; their ids mean the same.
    if all(kind.get(n) in _NO_TEXT for kind in kinds for n, _, _ in differing) and not (
        draft_simple and last >= _FIRST_CHECKED_ID
    ):
        return _problem("special_tokens_differ", "warning", f"{message}, none of which is text")
    return _problem("vocabulary_differs", "error", message)


def _longer(target: Header, drafter: Header, of_target: Array, of_drafter: Array, draft_simple: bool) -> Problem:
    is_target = len(of_target) > len(of_drafter)
    which, longer, header = ("target", of_target, target) if is_target else ("drafter", of_drafter, drafter)
    shorter = min(len(of_target), len(of_drafter))
    extra = len(longer) - shorter
    kinds = _types(header, shorter, len(longer)) or {}
    for number, text in enumerate(islice(longer.strings(), shorter, None), shorter):
        if text and kinds.get(number) != _UNUSED and not _PADDING.fullmatch(text):
            return _problem(
                "vocabulary_differs",
                "error",
                f"token {number} is {_shown(text)} in the {which}, and the other has no more than {shorter} tokens",
            )
    message = f"the {which} has {extra} more tokens than the other, from id {shorter} on, all of them padding"
    if extra > MAX_SIZE_DIFFERENCE:
        message += f"; draft-simple refuses more than {MAX_SIZE_DIFFERENCE}"
    refused = draft_simple and extra > MAX_SIZE_DIFFERENCE
    return _problem("vocabulary_padded", "error" if refused else "warning", message)


def _of_first_and_last(target: Header, drafter: Header, draft_simple: bool) -> Iterator[Problem]:
    """A drafter neither begins nor ends a text; draft-simple wants the same ids where a tokenizer adds them."""
    for name, code, what in (("bos", "bos_differs", "begins a text"), ("eos", "eos_differs", "ends a text")):
        ours, theirs = (header.integer(f"tokenizer.ggml.{name}_token_id") for header in (target, drafter))
        if ours == theirs:
            continue
        adds = all(header.value(f"tokenizer.ggml.add_{name}_token") is True for header in (target, drafter))
        named = ["no token" if number is None else f"token {number}" for number in (theirs, ours)]
        yield _problem(
            code,
            "error" if draft_simple and adds and None not in (ours, theirs) else "warning",
            f"{named[0]} {what} for the drafter, {named[1]} for the target",
        )


def _of_added_ids(target: Header, drafter: Header) -> Iterator[Problem]:
    for name in ("add_bos_token", "add_eos_token"):
        flags = [header.value(f"tokenizer.ggml.{name}") for header in (target, drafter)]
        if all(isinstance(flag, bool) for flag in flags) and flags[0] != flags[1]:
            yield _problem(
                f"{name}_differs",
                "error",
                f"{name} is {flags[1]} in the drafter and {flags[0]} in the target, which draft-simple refuses",
            )


def _tokens(header: Header) -> Array | None:
    tokens = header.array(TOKENS)
    return tokens if tokens is not None and tokens.type is ValueType.STRING else None


def _types(header: Header, start: int, end: int) -> dict[int, int] | None:
    """The types of the tokens from `start` to before `end`; None where the file says none."""
    array = header.array(TYPES)
    if array is None or not array.type.is_integer or not 0 <= start < (end := min(end, len(array))):
        return None
    size = len(array.raw) // len(array)
    part = Array(array.type, end - start, array.raw[start * size : end * size])
    return dict(enumerate(part.values(), start))


def _quoted(header: Header, key: str) -> str:
    text = header.text(key)
    return "not given" if text is None else repr(shown(text, _SHOWN_BYTES))


def _shown(text: bytes) -> str:
    return repr(shown(text, _SHOWN_BYTES))


def _problem(code: str, severity: Literal["error", "warning"], message: str) -> Problem:
    return Problem(code=code, severity=severity, message=message)
