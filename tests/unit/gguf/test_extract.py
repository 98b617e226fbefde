"""Heads out of files, and files without their heads."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import graft, plan_graft
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import ValueType
from orchestrator.gguf.writer import PADDING_KEY
from tests.support.gguf_bytes import Items
from tests.support.tensors import keys_of, tensors_of
from tests.support.tiny import ARCH, TOKENS, Tiny, head_only

BLOCKS, HEADS = f"{ARCH}.block_count", f"{ARCH}.nextn_predict_layers"
TOKENS_SHA256 = "slipstream.donor.tokens_sha256"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return Tiny(heads=2).write(tmp_path / "whole.gguf")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def refused(code: Code, call: Any, *arguments: Any, **options: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        call(*arguments, **options)
    assert caught.value.code is code
    return caught.value


def without_padding(path: Path) -> dict[str, Any]:
    return {key: value for key, value in keys_of(path).items() if key != PADDING_KEY}


def test_a_donor_has_the_head_and_what_tells_its_vocabulary(whole: Path, out: Path) -> None:
    found = extract(whole, out, kind="donor")
    assert (found.kind, found.trunk_blocks, found.head_blocks, found.tensors) == ("donor", 2, 2, 28)
    assert tensors_of(out) == {n: t for n, t in tensors_of(whole).items() if n.startswith(("blk.2.", "blk.3."))}
    keys = without_padding(out)
    tokens = read_file(whole).array("tokenizer.ggml.tokens")
    assert tokens is not None
    assert keys.pop(TOKENS_SHA256) == hashlib.sha256(tokens.raw).hexdigest()
    assert keys.pop("slipstream.donor.tokens") == len(TOKENS)
    assert keys == {k: v for k, v in keys_of(whole).items() if not k.startswith("tokenizer.")}
    assert found.size_bytes == out.stat().st_size < whole.stat().st_size


def test_a_drafter_has_what_is_in_no_block_too(whole: Path, out: Path) -> None:
    found = extract(whole, out, kind="drafter")
    assert found.tensors == 30
    assert tensors_of(out).keys() - tensors_of(whole).keys() == set()
    assert {"token_embd.weight", "output_norm.weight"} < tensors_of(out).keys()
    assert not any(name.startswith(("blk.0.", "blk.1.")) for name in tensors_of(out))
    assert without_padding(out) == keys_of(whole)


def test_a_drafter_out_of_a_graft_says_nothing_of_the_graft(tmp_path: Path, out: Path) -> None:
    base, donor = Tiny().write(tmp_path / "b.gguf"), head_only().write(tmp_path / "d.gguf")
    graft(base, donor, tmp_path / "g.gguf")
    extract(tmp_path / "g.gguf", out, kind="drafter")
    assert [key for key in keys_of(out) if key.startswith("slipstream.")] in ([], [PADDING_KEY])


def test_a_head_out_of_a_drafter_is_a_donor_still(whole: Path, out: Path, tmp_path: Path) -> None:
    extract(whole, tmp_path / "drafter.gguf", kind="drafter")
    extract(tmp_path / "drafter.gguf", out, kind="donor")
    extract(out, tmp_path / "again.gguf", kind="donor")
    assert keys_of(out)[TOKENS_SHA256] == keys_of(tmp_path / "again.gguf")[TOKENS_SHA256]
    assert plan_graft(Tiny().write(tmp_path / "base.gguf"), tmp_path / "again.gguf").head_blocks == 2


def test_a_donor_knows_the_vocabulary_it_was_made_for(whole: Path, out: Path, tmp_path: Path) -> None:
    extract(whole, out, kind="donor")
    other = {"tokenizer.ggml.tokens": Items(ValueType.STRING, [*TOKENS[:-1], "<END>"])}
    base = Tiny(more_keys=other).write(tmp_path / "other.gguf")
    error = refused(Code.GRAFT_REFUSED, plan_graft, base, out)
    assert error.details == {"key": "tokenizer.ggml.tokens"} and "another vocabulary" in error.message


def test_counts_of_a_head_come_from_its_tensors(out: Path, tmp_path: Path) -> None:
    wrong = {BLOCKS: 99, HEADS: (ValueType.UINT16, 7)}
    source = head_only(heads=2, head_at=5, more_keys=wrong).write(tmp_path / "wrong.gguf")
    found = extract(source, out, kind="donor")
    assert {c.key: (c.before, c.after) for c in found.keys if c.key in wrong} == {
        BLOCKS: ("99", "7"),
        HEADS: ("7", "2"),
    }
    assert read_file(out).keys[HEADS].type is ValueType.UINT16


def test_a_head_alone_is_no_drafter(out: Path, tmp_path: Path) -> None:
    error = refused(Code.GRAFT_REFUSED, extract, head_only().write(tmp_path / "d.gguf"), out, kind="drafter")
    assert error.details == {"tensor": "output_norm.weight"} and "token_embd.weight" in error.message
    assert not out.exists()


def test_no_drafter_for_what_llama_cpp_cannot_draft_with(out: Path, tmp_path: Path) -> None:
    keys = {"general.architecture": "glm4", "glm4.block_count": 3, "glm4.nextn_predict_layers": 1}
    source = Tiny(heads=1, more_keys=keys).write(tmp_path / "glm4.gguf")
    assert "cannot draft" in refused(Code.GRAFT_REFUSED, extract, source, out, kind="drafter").message
    extract(source, out, kind="donor")


@pytest.mark.parametrize("kind", ["donor", "drafter"])
def test_what_has_no_head_gives_none(out: Path, tmp_path: Path, kind: Any) -> None:
    error = refused(Code.GRAFT_REFUSED, extract, Tiny().write(tmp_path / "t.gguf"), out, kind=kind)
    assert "no MTP head" in error.message


def test_a_model_without_its_head(whole: Path, out: Path, tmp_path: Path) -> None:
    found = strip(whole, out)
    assert (found.kind, found.trunk_blocks, found.head_blocks, found.tensors) == ("trunk", 2, 2, 24)
    trunk = Tiny().write(tmp_path / "trunk.gguf")
    assert tensors_of(out) == tensors_of(trunk)
    assert without_padding(out) == keys_of(trunk)
    changes = {c.key: (c.before, c.after) for c in found.keys if c.key != PADDING_KEY}
    assert changes == {BLOCKS: ("4", "2"), HEADS: ("2", None)}


def test_a_model_that_announces_a_head_it_lacks_announces_none_any_more(out: Path, tmp_path: Path) -> None:
    pattern = {f"{ARCH}.expert_feed_forward_length": Items(ValueType.INT32, [1, 2, 3])}
    found = strip(Tiny(announced=1, more_keys=pattern).write(tmp_path / "a.gguf"), out)
    assert found.head_blocks == 1
    assert keys_of(out)[f"{ARCH}.expert_feed_forward_length"] == [1, 2]
    assert HEADS not in keys_of(out) and keys_of(out)[BLOCKS] == 2


def test_where_there_is_no_head_there_is_nothing_to_strip(out: Path, tmp_path: Path) -> None:
    error = refused(Code.GRAFT_REFUSED, strip, Tiny().write(tmp_path / "t.gguf"), out)
    assert error.details == {"key": HEADS} and not out.exists()


def test_of_a_split_model_the_shards_stay(out: Path, tmp_path: Path) -> None:
    names = list(Tiny(heads=1).tensors)
    shards = Tiny(heads=1).write_split(tmp_path, "s", (10, names.index("blk.2.attn_norm.weight") - 10))
    found = strip(shards[2], out)
    assert found.outputs == ("out-00001-of-00002.gguf", "out-00002-of-00002.gguf"), "the head's own shard is gone"
    assert tensors_of(tmp_path / found.outputs[1]) == tensors_of(shards[1])
    extract(shards[0], tmp_path / "donor.gguf", kind="donor")
    assert not any(key.startswith("split.") for key in keys_of(tmp_path / "donor.gguf"))


@pytest.mark.parametrize("call", [extract, strip])
def test_no_input_and_nothing_that_exists_is_written_to(whole: Path, out: Path, call: Any) -> None:
    options = {"kind": "donor"} if call is extract else {}
    before = whole.read_bytes()
    refused(Code.CONFLICT, call, whole, whole, overwrite=True, **options)
    out.write_text("mine")
    refused(Code.CONFLICT, call, whole, out, **options)
    assert whole.read_bytes() == before and out.read_text() == "mine"
    call(whole, out, overwrite=True, **options)


def test_progress_ends_at_its_total(whole: Path, out: Path) -> None:
    heard: list[tuple[int, int]] = []
    found = extract(whole, out, kind="donor", progress=lambda *seen: heard.append(seen))
    assert heard[-1] == (found.size_bytes, found.size_bytes)
