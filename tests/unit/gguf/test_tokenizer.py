"""What a tokenizer is known by, and where a drafter's differs from its target's (field case 8)."""

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.gguf.header import Header
from orchestrator.gguf.reader import read_header
from orchestrator.gguf.tokenizer import MAX_SIZE_DIFFERENCE, compare_tokenizers, tokenizer_of
from orchestrator.gguf.types import ValueType
from tests.support.gguf_bytes import Items, Keys, gguf
from tests.unit.gguf.test_reader import Bytes

NORMAL, CONTROL, UNUSED = 1, 3, 5
TOKENS = ["<unk>", "<s>", "</s>", *(chr(n) for n in range(0x61, 0x7B)), "<|end|>", "<|im_end|>"]
TYPES = [2, CONTROL, CONTROL, *[NORMAL] * 26, CONTROL, CONTROL]


def header(
    tokens: Sequence[str | bytes] = TOKENS, types: Sequence[int] | None = None, drop: str = "", **other: Any
) -> Header:
    """A header with a tokenizer; `other` keys are those of tokenizer.ggml."""
    if types is None:
        types = [*TYPES, *[NORMAL] * (len(tokens) - len(TYPES))][: len(tokens)]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": Items(ValueType.STRING, tokens),
        "token_type": Items(ValueType.INT32, types),
        "merges": Items(ValueType.STRING, ["a b"]),
        "bos_token_id": 1,
        "eos_token_id": 2,
        **other,
    }
    keys: Keys = {f"tokenizer.ggml.{name}": value for name, value in values.items() if name != drop}
    return read_header(Bytes(gguf({"general.architecture": "llama", **keys})))


def found(target: Header, drafter: Header, **how: bool) -> list[tuple[str, str]]:
    return [(problem.code, problem.severity) for problem in compare_tokenizers(target, drafter, **how)]


def test_a_tokenizer_is_told() -> None:
    tokenizer = tokenizer_of(header())
    assert tokenizer is not None
    assert (tokenizer.model, tokenizer.pre, tokenizer.tokens) == ("gpt2", "gpt-2", len(TOKENS))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer_of(read_header(Bytes(gguf({"general.architecture": "llama"})))) is None


def fingerprint(of: Header) -> str:
    tokenizer = tokenizer_of(of)
    assert tokenizer is not None
    return tokenizer.fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "llama"},
        {"pre": "qwen2"},
        {"tokens": [*TOKENS[:-1], "<|im_END|>"]},
        {"types": [*TYPES[:-1], NORMAL]},
        {"merges": Items(ValueType.STRING, ["a c"])},
        {"eos_token_id": 3},
        {"eot_token_id": 3},
        {"add_bos_token": True},
        {"scores": Items(ValueType.FLOAT32, [0.0])},
        {"drop": "pre"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_fingerprint_changes_with_what_it_stands_for(changed: dict[str, Any]) -> None:
    assert fingerprint(header(**changed)) != fingerprint(header())


def test_a_fingerprint_does_not_change_with_anything_else() -> None:
    assert fingerprint(header(chat_template="{{ x }}")) == fingerprint(header())
    assert fingerprint(header(eos_token_id=(ValueType.UINT64, 2))) == fingerprint(header())


def test_tokenizers_that_agree_have_no_problem() -> None:
    assert found(header(), header(chat_template="x"), draft_simple=True) == []
    bare = read_header(Bytes(gguf({"general.architecture": "llama"})))
    assert found(bare, bare) == []


def test_the_first_differing_id_is_named_with_both_texts() -> None:
    other = [*TOKENS]
    other[7], other[9] = "ẞ", "?"
    (problem,) = compare_tokenizers(header(), header(other))
    assert (problem.code, problem.severity) == ("vocabulary_differs", "error")
    assert problem.message == "token 7 is 'e' in the target and 'ẞ' in the drafter; 2 of 31 tokens differ"


def test_bytes_that_are_no_text_and_long_ones_are_shown_all_the_same() -> None:
    other: list[str | bytes] = [*TOKENS]
    other[5] = b"\xff" + b"x" * 200
    (problem,) = compare_tokenizers(header(), header(other))
    assert "\N{REPLACEMENT CHARACTER}xxx" in problem.message and len(problem.message) < 160


def test_special_tokens_at_the_start_may_be_called_otherwise() -> None:
    other = ["<UNK>", "<bos>", "<eos>", *TOKENS[3:]]
    assert found(header(), header(other), draft_simple=True) == [("special_tokens_differ", "warning")]
    # In byte-level BPE the first ids are text.
    assert found(header(types=[NORMAL] * len(TOKENS)), header(other)) == [("vocabulary_differs", "error")]


@pytest.mark.parametrize(
    "padding",
    ["[PAD31]", "<unused0>", "<|reserved_special_token_5|>", "[unused3]", "<pad>", "<extra_id_9>", "<|dummy_1|>", ""],
)
def test_padding_at_the_tail_is_a_warning(padding: str) -> None:
    longer = header([*TOKENS, padding, padding])
    for pair in ((header(), longer), (longer, header())):
        assert found(*pair) == [("vocabulary_padded", "warning")]


def test_unused_tokens_at_the_tail_are_padding_whatever_their_text() -> None:
    longer = header([*TOKENS, "anything"], [*TYPES, UNUSED])
    (problem,) = compare_tokenizers(header(), longer)
    assert problem.code == "vocabulary_padded"
    assert problem.message.startswith("the drafter has 1 more tokens than the other, from id 31 on")


def test_text_at_the_tail_is_a_difference() -> None:
    (problem,) = compare_tokenizers(header([*TOKENS, "[PAD]", "<|tool|>"]), header())
    assert (problem.code, problem.severity) == ("vocabulary_differs", "error")
    assert problem.message == "token 32 is '<|tool|>' in the target, and the other has no more than 31 tokens"


def test_draft_simple_refuses_much_padding() -> None:
    padded = header([*TOKENS, *(f"[PAD{n}]" for n in range(MAX_SIZE_DIFFERENCE + 1))])
    assert found(header(), padded) == [("vocabulary_padded", "warning")]
    assert found(header(), padded, draft_simple=True) == [("vocabulary_padded", "error")]
    fits = header([*TOKENS, *(f"[PAD{n}]" for n in range(MAX_SIZE_DIFFERENCE))])
    assert found(header(), fits, draft_simple=True) == [("vocabulary_padded", "warning")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model": "llama"}, [("tokenizer_model_differs", "warning")]),
        ({"pre": "qwen2"}, [("pre_tokenizer_differs", "warning")]),
        ({"drop": "pre"}, [("pre_tokenizer_differs", "warning")]),
        ({"bos_token_id": 29}, [("bos_differs", "warning")]),
        ({"drop": "bos_token_id"}, [("bos_differs", "warning")]),
        ({"eos_token_id": 7}, [("eos_differs", "warning")]),
        ({"eos_token_id": (ValueType.UINT64, 2**40)}, [("eos_differs", "warning")]),
        ({"drop": "tokens"}, [("vocabulary_missing", "error")]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_differences(changed: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(header(), header(**changed)) == expected


def test_a_vocabulary_that_is_no_list_of_texts_is_none() -> None:
    keys: Keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": Items(ValueType.INT32, [1, 2])}
    assert ("vocabulary_missing", "error") in found(header(), read_header(Bytes(gguf(keys))))


def test_special_tokens_that_were_renamed_mean_the_same() -> None:
    other = [*TOKENS[:-2], "<|eot|>", "<|vision_pad|>"]
    assert found(header(), header(other)) == [("special_tokens_differ", "warning")]
    # llama-server compares texts before it drafts this way.
    assert found(header(), header(other), draft_simple=True) == [("vocabulary_differs", "error")]
    assert found(header(), header(["?", *other[1:]], [NORMAL, *TYPES[1:]])) == [("vocabulary_differs", "error")]


def test_a_drafter_without_a_tokenizer_cannot_be_compared() -> None:
    bare = read_header(Bytes(gguf({"general.architecture": "eagle3", "tokenizer.ggml.model": "none"})))
    assert found(header(), bare) == [("vocabulary_missing", "warning")]
    assert ("vocabulary_missing", "error") in found(header(), bare, draft_simple=True)


def test_ends_that_draft_simple_refuses() -> None:
    assert found(header(), header(model="llama"), draft_simple=True) == [("tokenizer_model_differs", "error")]
    adds: dict[str, Any]
    other: dict[str, Any]
    for name in ("bos", "eos"):
        adds, other = {f"add_{name}_token": True}, {f"{name}_token_id": 30}
        pair = header(**adds), header(**adds, **other)
        assert found(*pair, draft_simple=True) == [(f"{name}_differs", "error")]
        assert found(*pair) == [(f"{name}_differs", "warning")]
        assert found(header(), header(**other), draft_simple=True) == [(f"{name}_differs", "warning")]


def test_what_draft_simple_refuses_besides() -> None:
    pair = header(add_bos_token=True), header(add_bos_token=False)
    assert found(*pair) == []
    assert found(*pair, draft_simple=True) == [("add_bos_token_differs", "error")]
