"""Preflight over made-up headers; tests/integration/gguf/test_preflight.py shows it right on the real server."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.gguf.architectures import ARCHITECTURES
from orchestrator.gguf.preflight import preflight
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Items
from tests.unit.gguf import made
from tests.unit.gguf.test_model import split

F32 = TensorType.F32
MTP, SIMPLE = ("draft-mtp",), ("draft-simple",)
DRAFTING = [name for name, architecture in ARCHITECTURES.items() if architecture.drafts_with_mtp]


class Files:
    """Writes made-up models into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, keys: dict[str, Any], tensors: dict[str, Any]) -> Path:
        return made.write(self.folder / f"{name}.gguf", (keys, tensors))

    def plain(self, name: str = "plain", arch: str = "llama", blocks: int = 2, **changed: Any) -> Path:
        return self.write(name, made.keys(arch, blocks, **changed), made.around(arch) | made.trunk_of(arch, blocks))

    def whole(self, arch: str = "glm4moe", **changed: Any) -> Path:
        return self.write("whole", *made.whole(arch, **changed))

    def trunk(self, arch: str = "glm4moe", **changed: Any) -> Path:
        return self.write("trunk", made.keys(arch, 2, **changed), made.around(arch) | made.trunk_of(arch, 2))

    def drafter(self, arch: str = "glm4moe", **changed: Any) -> Path:
        return self.write("drafter", *made.drafter(arch, **changed))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def codes(*arguments: Any, **named: Any) -> list[str]:
    return [p.code if p.severity == "error" else f"{p.code} (warning)" for p in preflight(*arguments, **named)]


@pytest.mark.parametrize("arch", DRAFTING)
def test_a_whole_head_and_a_whole_drafter_are_clean(files: Files, arch: str) -> None:
    assert codes(files.whole(arch), None, MTP) == []
    assert codes(files.trunk(arch), files.drafter(arch), MTP) == []
    assert codes(files.whole(arch)) == []


def test_plain_pairs_and_ngrams_are_clean(files: Files) -> None:
    assert codes(files.plain(), files.plain("small", blocks=1), SIMPLE) == []
    assert codes(files.plain(), None, ("ngram-mod", "ngram-map-k")) == []
    assert codes(files.plain(), None, ("none",)) == []


@pytest.mark.parametrize("arch", DRAFTING)
def test_each_tensor_a_head_needs_is_missed(files: Files, arch: str) -> None:
    keys, tensors = made.whole(arch, expert_shared_count=1)
    for name in made.head_of(arch, 2):
        path = files.write("broken", keys, {n: info for n, info in tensors.items() if n != name})
        (problem,) = preflight(path, None, MTP)
        assert (problem.code, problem.severity) == ("missing_head_tensor", "error")
        assert name in problem.message


def test_a_model_without_a_head_cannot_draft_by_itself(files: Files) -> None:
    assert codes(files.trunk(), None, MTP) == ["no_head"]
    assert codes(files.plain(), None, MTP) == ["no_head"]


def test_a_head_that_is_only_announced(files: Files) -> None:
    announced = files.write(
        "announced", made.keys("glm4moe", 2, 1), made.around("glm4moe") | made.trunk_of("glm4moe", 2)
    )
    assert codes(announced, None, MTP) == ["head_missing"]
    assert codes(announced) == ["head_missing (warning)"]
    assert codes(announced, files.drafter(), MTP) == ["head_missing (warning)"]
    strict = files.write("strict", made.keys("qwen35", 2, 1), made.around("qwen35") | made.trunk_of("qwen35", 2))
    for arguments in ((strict, None, MTP), (strict,), (strict, files.drafter("qwen35"), MTP)):
        assert codes(*arguments) == ["head_missing"]


def test_a_head_that_is_not_used_must_load_all_the_same(files: Files) -> None:
    def lacking(arch: str, name: str) -> Path:
        keys, tensors = made.whole(arch)
        return files.write("lacking", keys, {n: info for n, info in tensors.items() if n != f"blk.2.{name}"})

    assert codes(lacking("glm4moe", "nextn.enorm.weight")) == ["missing_head_tensor"]
    # By this tensor llama.cpp tells whether there is a head at all.
    assert codes(lacking("glm4moe", "nextn.eh_proj.weight")) == ["missing_head_tensor (warning)"]
    assert codes(lacking("qwen35", "nextn.eh_proj.weight")) == ["missing_head_tensor"]


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("deepseek2", ("attn_q_a", "attn_q_a_norm", "attn_q_b")),
        ("deepseek2", ("attn_k_b", "attn_v_b")),
        ("hy_v3", ("ffn_gate", "ffn_up", "ffn_down")),
        ("mimo2", ("attn_qkv",)),
        ("step35", ("ffn_down",)),
    ],
)
def test_what_only_the_graph_that_drafts_needs(files: Files, arch: str, names: tuple[str, ...]) -> None:
    keys, tensors = made.whole(arch)
    without = {f"blk.2.{name}.weight" for name in names}
    path = files.write("lacking", keys, {n: info for n, info in tensors.items() if n not in without})
    assert codes(path) == codes(path, files.drafter(arch), MTP) == ["missing_head_tensor (warning)"]
    assert codes(path, None, MTP) == ["missing_head_tensor"]


def test_a_dense_head_that_is_not_used(files: Files) -> None:
    dense = files.whole(leading_dense_block_count=3)
    assert codes(dense) == ["head_not_moe (warning)"]
    assert codes(dense, None, MTP) == ["head_not_moe"]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "dots3note"])
def test_a_head_that_is_announced_where_llama_cpp_looks_for_none(files: Files, arch: str) -> None:
    keys, tensors = made.keys(arch, 2, 1), made.around(arch) | made.trunk_of(arch, 2)
    announced = files.write("announced", keys, tensors)
    assert codes(announced) == ["head_missing (warning)"]
    assert codes(announced, None, MTP) == ["head_missing"]
    counted = files.write("counted", made.keys(arch, 1, 1), tensors)
    assert codes(counted) == ["missing_head_tensor" + (" (warning)" if arch == "dots3note" else "")]


def test_a_head_of_deepseek4_that_is_announced_and_not_counted(files: Files) -> None:
    trunk = made.around("deepseek4") | made.trunk_of("deepseek4", 2)
    path = files.write("trunk", made.keys("deepseek4", 1, 1), trunk)
    assert codes(path) == []
    assert codes(path, None, MTP) == ["no_head"]
    assert codes(files.write("more", made.keys("deepseek4", 2, 1), trunk)) == ["head_missing"]


def test_more_blocks_than_the_architecture_drafts_with(files: Files) -> None:
    assert codes(files.whole(heads=2), None, MTP) == ["too_many_head_blocks"]
    assert codes(files.whole(heads=2)) == []
    assert codes(files.whole("step35", heads=3), None, MTP) == []


def test_an_architecture_without_a_graph_for_its_head(files: Files) -> None:
    tensors = made.around("llama") | made.trunk_of("llama", 2) | {"blk.2.nextn.enorm.weight": ((8,), F32)}
    path = files.write("glm4", made.keys("glm4", 2, 1), tensors)
    assert codes(path, None, MTP) == ["mtp_unsupported"]
    assert codes(path) == []


def test_a_donor_is_no_drafter_and_no_model(files: Files) -> None:
    donor = files.write("donor", made.keys("glm4moe", 2, 1), made.head_of("glm4moe", 2))
    (problem,) = preflight(files.trunk(), donor, MTP)
    assert problem.code == "donor_not_loadable"
    assert "token_embd.weight, output_norm.weight" in problem.message
    assert codes(donor, None, MTP) == ["not_a_model"]
    assert codes(files.plain(), donor, SIMPLE) == ["wrong_drafter"]


@pytest.mark.parametrize(
    ("keys", "tensors"),
    [
        ({"general.architecture": "clip"}, {"v.blk.0.ln1.weight": ((8,), F32)}),
        ({"general.type": "imatrix"}, {"blk.0.attn_q.weight.in_sum2": ((8,), F32)}),
        ({"general.architecture": "llama", "general.type": "adapter"}, {"a.lora_a": ((8,), F32)}),
        (made.keys("llama", 1), {}),
        made.drafter(),
        ({}, {}),
    ],
    ids=["mmproj", "imatrix", "adapter", "vocabulary", "drafter", "other"],
)
def test_what_is_no_model_is_refused_by_what_it_is(files: Files, keys: dict[str, Any], tensors: dict[str, Any]) -> None:
    path = files.write("wrong", keys, tensors)
    assert codes(path) == ["not_a_model"]
    assert codes(files.plain(), path, SIMPLE) == ["wrong_drafter"]


def test_a_drafter_that_lacks_what_stands_around_the_head(files: Files) -> None:
    keys, tensors = made.drafter()
    path = files.write("drafter", keys, {n: info for n, info in tensors.items() if n != "output_norm.weight"})
    (problem,) = preflight(files.trunk(), path, MTP)
    assert problem.code == "missing_drafter_tensor" and "output_norm.weight" in problem.message


def test_an_output_of_its_own_will_do_for_step35(files: Files) -> None:
    keys, tensors = made.drafter("step35")
    del tensors["output.weight"]
    assert codes(files.trunk("step35"), files.write("a", keys, tensors), MTP) == ["missing_drafter_tensor"]
    tensors["blk.2.nextn.shared_head_head.weight"] = ((8, 4), F32)
    assert codes(files.trunk("step35"), files.write("b", keys, tensors), MTP) == []


def test_a_drafter_without_a_head_or_with_a_trunk(files: Files) -> None:
    assert codes(files.trunk(), files.plain(), MTP) == ["no_head"]
    assert codes(files.trunk(), files.whole(), MTP) == ["drafter_has_trunk (warning)"]


def test_a_drafter_of_another_architecture_width_or_vocabulary(files: Files) -> None:
    assert codes(files.trunk(), files.drafter("deepseek2"), MTP) == ["architecture_differs"]
    keys, tensors = made.drafter(embedding_length=16)
    wide = files.write("wide", keys, tensors | {"token_embd.weight": ((16, 4), F32)})
    assert codes(files.trunk(), wide, MTP) == ["width_differs"]
    (problem,) = preflight(files.trunk(), files.drafter(tokens=("<s>", "</s>", "a", "c")), MTP)
    assert problem.code == "vocabulary_differs"
    assert "token 3 is 'b' in the target and 'c' in the drafter" in problem.message
    assert codes(files.plain(), files.plain("small", tokens=("<s>", "</s>", "x", "b")), SIMPLE) == [
        "vocabulary_differs"
    ]


def test_the_width_of_rows_with_several_streams(files: Files) -> None:
    trunk = files.trunk("qwen4exp", hyper_connection__count=2)
    assert codes(trunk, files.drafter("qwen4exp", hyper_connection__count=2), MTP) == []
    assert codes(trunk, files.drafter("qwen4exp", hyper_connection__count=4), MTP) == ["width_differs"]


def test_an_assistant_drafts_for_gemma4_alone(files: Files) -> None:
    keys = made.keys("gemma4-assistant", 0, 2, embedding_length_out=8)
    assistant = files.write("assistant", keys, made.around("gemma4") | made.trunk_of("gemma4", 2))
    assert codes(files.plain(arch="gemma4"), assistant, MTP) == []
    assert codes(files.plain(), assistant, MTP) == ["architecture_differs"]
    assert codes(files.plain(arch="gemma4"), assistant, SIMPLE) == ["wrong_drafter"]
    wide = files.write("wide", keys | {"gemma4-assistant.embedding_length_out": 16}, made.around("gemma4"))
    assert codes(files.plain(arch="gemma4"), wide, MTP) == ["width_differs"]


def eagle3(files: Files, **changed: Any) -> Path:
    of_arch = {"target_layers": Items(ValueType.INT32, [0, 1, 2]), "target_hidden_size": 8, **changed}
    return files.write("eagle3", made.keys("eagle3", 1, **of_arch), {"fc.weight": ((8,), F32)})


def test_drafters_of_an_architecture_of_their_own(files: Files) -> None:
    target = files.plain(blocks=2)
    assert codes(target, eagle3(files), ("draft-eagle3",)) == []
    assert codes(target, eagle3(files), ("draft-dflash",)) == ["wrong_drafter"]
    assert codes(target, eagle3(files), MTP) == ["no_head"]
    assert codes(target, files.plain("small"), ("draft-eagle3",)) == ["wrong_drafter"]
    deep = eagle3(files, target_layers=Items(ValueType.INT32, [0, 1, 3]))
    assert codes(target, deep, ("draft-eagle3",)) == ["target_layers_differ"]
    assert codes(target, eagle3(files, target_layers=1), ("draft-eagle3",)) == ["target_layers_missing"]
    assert codes(target, eagle3(files, target_hidden_size=16), ("draft-eagle3",)) == ["width_differs"]


@pytest.mark.parametrize("type_", ["draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"])
def test_types_that_need_a_drafter(files: Files, type_: str) -> None:
    assert codes(files.plain(), None, (type_,)) == ["drafter_missing"]


def test_a_drafter_that_nothing_drafts_with(files: Files) -> None:
    for types in ((), ("none",), ("ngram-mod",)):
        assert codes(files.plain(), files.plain("small"), types) == ["drafter_unused (warning)"]


def test_one_drafter_serves_one_type(files: Files) -> None:
    assert "drafters_conflict" in codes(files.plain(), files.plain("small"), ("draft-mtp", "draft-simple"))


@pytest.mark.parametrize("types", [MTP, SIMPLE])
def test_drafts_of_no_tokens(files: Files, types: tuple[str, ...]) -> None:
    model, drafter = (files.whole(), None) if types == MTP else (files.plain(), files.plain("small"))
    assert codes(model, drafter, types, 0) == ["no_drafts"]
    assert codes(model, drafter, types, 1) == []
    assert codes(files.plain(), None, ("ngram-mod",), 0) == []


def test_drafts_longer_than_a_chained_head(files: Files) -> None:
    assert codes(files.whole("step35", heads=2), None, MTP, 2) == []
    assert codes(files.whole("step35", heads=2), None, MTP, 3) == ["n_max_clamped (warning)"]
    # One block drafts again and again.
    assert codes(files.whole("step35"), None, MTP, 8) == []
    assert codes(files.trunk("step35"), files.drafter("step35", heads=2), MTP, 3) == ["n_max_clamped (warning)"]


def test_files_that_cannot_be_read(files: Files) -> None:
    page = files.folder / "page.gguf"
    page.write_bytes(b"<html>" + bytes(100))
    assert codes(page) == ["invalid_gguf"]
    assert codes(files.folder / "absent.gguf", None, MTP) == ["not_found"]
    assert codes(files.plain(), page, SIMPLE) == ["invalid_gguf"]
    problems = preflight(page, files.folder / "absent.gguf", SIMPLE)
    assert [p.message.split(":")[0] for p in problems] == ["the model", "the drafter"]
    assert all(str(files.folder) not in p.message for p in problems)


def test_tokens_of_the_same_text(files: Files) -> None:
    assert codes(files.plain(tokens=("<s>", "</s>", "a", "a"))) == ["vocabulary_repeats"]
    assert codes(files.plain(tokens=("<s>", "</s>", "", ""))) == []


def test_repeats_that_llama_cpp_does_not_see(files: Files) -> None:
    assert codes(files.plain(tokens=("<s>", "</s>", "\0a", "\0b"))) == []
    assert codes(files.plain(tokens=("<s>", "</s>", "a\0", "a"))) == ["vocabulary_repeats"]
    keys = made.keys("llama", 2, tokens=("a", "a", "a", "a")) | {"tokenizer.ggml.model": "none"}
    assert codes(files.write("none", keys, made.around("llama") | made.trunk_of("llama", 2))) == []


def test_a_whole_file_with_the_name_of_a_shard(files: Files) -> None:
    assert codes(files.plain("merged-00001-of-00003")) == []
    assert codes(files.plain("merged-00002-of-00003")) == []


def test_what_another_build_may_load(files: Files) -> None:
    newer = files.plain("newer")
    raw = bytearray(newer.read_bytes())
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    raw[at : at + 4] = (144).to_bytes(4, "little")
    newer.write_bytes(raw)
    assert codes(newer) == ["unknown_tensor_type"]
    assert codes(newer, is_pinned=False) == ["unknown_tensor_type (warning)"]
    strict = files.write("strict", made.keys("qwen35", 2, 1), made.around("qwen35") | made.trunk_of("qwen35", 2))
    assert codes(strict, is_pinned=False) == ["head_missing (warning)"]
    assert codes(files.folder / "absent.gguf", is_pinned=False) == ["not_found"]


def test_a_model_with_a_key_of_another_role_is_a_model(files: Files) -> None:
    keys = made.keys("llama", 2) | {"imatrix.datasets": "x", "adapter.type": "merged"}
    assert codes(files.write("model", keys, made.around("llama") | made.trunk_of("llama", 2))) == []


def test_shards(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert "not_first_shard" in codes(paths[1])
    assert "not_first_shard" not in codes(paths[0])
    paths[1].unlink()
    assert "missing_shards" in codes(paths[0], None, MTP) and "no_head" not in codes(paths[0], None, MTP)
    assert "split_disagrees" in codes(paths[0].rename(tmp_path / "renamed.gguf"))


def test_every_problem_is_said_once(files: Files) -> None:
    problems = preflight(
        files.plain(), files.plain("small", tokens=("<s>", "</s>", "x", "b")), ("draft-simple", "draft-simple")
    )
    assert len(problems) == len(set(problems))
