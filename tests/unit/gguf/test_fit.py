"""Every reason why a head cannot draft for a base: refused, with the key or tensor and both values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.compose import kept_groups, new_files
from orchestrator.gguf.copying import Meter
from orchestrator.gguf.extract import extract, strip
from orchestrator.gguf.graft import plan_graft
from orchestrator.gguf.model import open_model
from orchestrator.gguf.output import write_files
from orchestrator.gguf.reader import read_file
from orchestrator.gguf.types import TensorType, ValueType
from orchestrator.gguf.writer import entry, lay_out
from orchestrator.schemas.gguf import GraftPlan
from tests.support.gguf_bytes import Items, gguf
from tests.support.tiny import ARCH, F32, FF, TOKENS, VOCABULARY, WIDTH, Tiny, head_only
from tests.toys.architectures import write_architecture

U32, STRING = ValueType.UINT32, ValueType.STRING


def plan(folder: Path, base: Tiny, donor: Tiny, **options: Any) -> GraftPlan:
    return plan_graft(base.write(folder / "base.gguf"), donor.write(folder / "donor.gguf"), **options)


def refused(folder: Path, base: Tiny, donor: Tiny, **options: Any) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        plan(folder, base, donor, **options)
    assert caught.value.code is Code.GRAFT_REFUSED
    assert {"key", "tensor"} & caught.value.details.keys()
    assert str(folder) not in caught.value.message
    return caught.value


def keyed(**keys: Any) -> dict[str, Any]:
    return {f"{ARCH}.{name.replace('__', '.')}": value for name, value in keys.items()}


@pytest.mark.parametrize(
    ("base", "numbers", "key"),
    [
        (Tiny(more_keys=keyed(block_count=3)), ("is 3", "2 trunk blocks"), "block_count"),
        (Tiny(more_keys=keyed(block_count=2, nextn_predict_layers=1)), ("is 2", "is 1", "2 trunk"), "block_count"),
        (Tiny(heads=1, more_keys=keyed(nextn_predict_layers=None)), ("is 0", "1 head blocks"), "block_count"),
        (Tiny(heads=1, announced=2), ("is 4", "is 2", "2 trunk blocks and 1 head"), "block_count"),
        (Tiny(more_keys=keyed(block_count=None)), ("is None", "2 trunk"), "block_count"),
        (Tiny(more_keys=keyed(block_count="two")), ("is None", "2 trunk"), "block_count"),
        (Tiny(trunk=600), ("600 blocks", "512"), "block_count"),
    ],
)
def test_a_base_that_contradicts_itself_is_refused_with_the_numbers(
    tmp_path: Path, base: Tiny, numbers: tuple[str, ...], key: str
) -> None:
    error = refused(tmp_path, base, head_only())
    assert error.details["key"] == f"{ARCH}.{key}"
    assert all(number in error.message for number in numbers), error.message


@pytest.mark.parametrize(
    ("base", "tensor", "word"),
    [
        (Tiny(without=tuple(n for n in Tiny().tensors if n.startswith("blk.0."))), "blk.0.", "none of blk.0"),
        (Tiny(trunk=2, heads=1, head_at=5, announced=4), "blk.5.attn_norm.weight", "blk.5"),
        (Tiny(without=("token_embd.weight",)), "token_embd.weight", "no whole model"),
        (Tiny(more_tensors={"token_embd.weight": ((WIDTH,), F32)}), "token_embd.weight", "two dimensions"),
        (head_only(), "token_embd.weight", "no blocks but those of an MTP head"),
    ],
)
def test_what_is_no_whole_model_is_no_base(tmp_path: Path, base: Tiny, tensor: str, word: str) -> None:
    error = refused(tmp_path, base, head_only())
    assert error.details["tensor"] == tensor and word in error.message


@pytest.mark.parametrize("which", ["base", "donor"])
def test_who_does_not_say_his_architecture_is_refused(tmp_path: Path, which: str) -> None:
    nameless: dict[str, Any] = {"more_keys": {"general.architecture": None}}
    pair = (Tiny(**nameless), head_only()) if which == "base" else (Tiny(), head_only(**nameless))
    assert f"{which}.gguf does not say" in refused(tmp_path, *pair).message


def test_architectures_must_be_one(tmp_path: Path) -> None:
    error = refused(tmp_path, Tiny(), head_only(more_keys={"general.architecture": "step35"}))
    assert error.details == {"key": "general.architecture"} and "step35" in error.message and ARCH in error.message


@pytest.mark.parametrize("arch", ["llama", "glm4", "bailingmoe2", "no-such-arch"])
def test_what_llama_cpp_cannot_draft_with_is_refused(tmp_path: Path, arch: str) -> None:
    keys = {"general.architecture": arch, f"{arch}.block_count": 2}
    error = refused(tmp_path, Tiny(more_keys=keys), head_only(more_keys=keys))
    assert "cannot draft" in error.message and arch in error.message


def test_one_block_only_where_llama_cpp_asserts_one(tmp_path: Path) -> None:
    keys = {"general.architecture": "qwen35", "qwen35.block_count": 2}
    error = refused(tmp_path, Tiny(more_keys=keys), head_only(heads=2, more_keys=keys))
    assert error.details == {"key": "qwen35.nextn_predict_layers"}
    assert "2 head blocks" in error.message and "1 only" in error.message
    assert len(plan(tmp_path, Tiny(), head_only(heads=3)).tensors) == 3 * 14


def test_a_donor_without_a_head_is_refused(tmp_path: Path) -> None:
    assert "no MTP head" in refused(tmp_path, Tiny(), Tiny()).message


def test_a_head_with_a_gap_is_refused(tmp_path: Path) -> None:
    gap = tuple(name for name in head_only(heads=3).tensors if name.startswith("blk.8."))
    error = refused(tmp_path, Tiny(), head_only(heads=3, without=gap))
    assert error.details == {"tensor": "blk.8.nextn.eh_proj.weight"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("nextn.eh_proj.weight", (2 * WIDTH, 2 * WIDTH)),
        ("nextn.eh_proj.weight", (WIDTH, WIDTH)),
        ("nextn.enorm.weight", (2 * WIDTH,)),
        ("nextn.embed_tokens.weight", (WIDTH, VOCABULARY + 1)),
        ("nextn.shared_head_head.weight", (WIDTH, VOCABULARY - 1)),
        ("nextn.shared_head_norm.weight", (WIDTH + 1,)),
        ("attn_k.weight", (WIDTH, 48)),
        ("attn_v.weight", (WIDTH, 8)),
        ("attn_q.weight", (WIDTH, 2 * WIDTH)),
        ("ffn_gate.weight", (WIDTH, 2 * FF)),
        ("attn_norm.weight", (2 * WIDTH,)),
    ],
)
def test_a_tensor_of_another_shape_is_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    donor = head_only(more_tensors={f"blk.7.{name}": (shape, F32)})
    error = refused(tmp_path, Tiny(), donor)
    assert error.details == {"tensor": f"blk.7.{name}"}
    assert str(shape[-1]) in error.message


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, Tiny(), head_only(without=("blk.7.nextn.hnorm.weight",)))
    assert error.details == {"tensor": "blk.7.nextn.hnorm.weight"}


def test_a_tensor_that_llama_cpp_does_not_know_is_named(tmp_path: Path) -> None:
    donor = head_only(more_tensors={"blk.7.nextn.novelty.weight": ((WIDTH,), F32)})
    error = refused(tmp_path, Tiny(), donor)
    assert error.details == {"tensor": "blk.7.nextn.novelty.weight"}


@pytest.mark.parametrize(
    ("mine", "theirs", "key"),
    [
        ({}, {"embedding_length": 64}, "embedding_length"),
        ({}, {"attention__head_count": 4}, "attention.head_count"),
        ({}, {"attention__head_count_kv": Items(U32, [1] * 7 + [2])}, "attention.head_count_kv"),
        ({"attention__key_length": 16}, {"attention__key_length": 32}, "attention.key_length"),
        ({"rope__dimension_count": 16}, {"rope__dimension_count": 8}, "rope.dimension_count"),
        (
            {"rope__dimension_sections": Items(U32, [1, 2, 3, 0])},
            {"rope__dimension_sections": Items(U32, [1, 2, 3, 4])},
            "rope.dimension_sections",
        ),
        ({}, {"feed_forward_length": 64}, "feed_forward_length"),
    ],
)
def test_values_that_contradict_are_refused_with_both(
    tmp_path: Path, mine: dict[str, Any], theirs: dict[str, Any], key: str
) -> None:
    error = refused(tmp_path, Tiny(more_keys=keyed(**mine)), head_only(more_keys=keyed(**theirs)))
    assert error.details == {"key": f"{ARCH}.{key}"}
    assert "base.gguf" in error.message and "donor.gguf" in error.message


def test_values_that_agree_or_are_not_said_are_no_matter(tmp_path: Path) -> None:
    mine = keyed(rope__freq_base=10000.0, attention__layer_norm_rms_epsilon=1e-5, context_length=4096)
    theirs = keyed(
        feed_forward_length=Items(U32, [1] * 7 + [FF]),
        attention__head_count_kv=Items(U32, [9] * 7 + [1]),
        context_length=8,
    )
    assert plan(tmp_path, Tiny(more_keys=mine), head_only(more_keys=theirs)).warnings == ()


@pytest.mark.parametrize(
    ("mine", "theirs", "key"),
    [
        ({"attention__layer_norm_rms_epsilon": 1e-5}, {"attention__layer_norm_rms_epsilon": 1e-6}, "rms_epsilon is"),
        ({"rope__freq_base": 10000.0}, {"rope__freq_base": 1e6}, "rope.freq_base is 10000.0"),
        # Where a file says nothing, llama.cpp takes 10,000.
        ({}, {"rope__freq_base": 1e6}, "rope.freq_base is 10000.0"),
        ({"expert_used_count": (U32, 2)}, {"expert_used_count": (U32, 8)}, "expert_used_count is 2"),
    ],
)
def test_values_that_only_make_it_draft_worse_are_warnings(
    tmp_path: Path, mine: dict[str, Any], theirs: dict[str, Any], key: str
) -> None:
    (warning,) = plan(tmp_path, Tiny(more_keys=keyed(**mine)), head_only(more_keys=keyed(**theirs))).warnings
    assert key in warning and "donor.gguf: the head may draft worse" in warning


def tokens(*texts: str) -> dict[str, Any]:
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": Items(STRING, texts)}


def test_another_vocabulary_is_refused_with_the_first_id_that_differs(tmp_path: Path) -> None:
    other = tokens("a", "b", "c", "D", "e", "<END>")
    error = refused(tmp_path, Tiny(), head_only(more_keys=other))
    assert error.details == {"key": "tokenizer.ggml.tokens"}
    assert "token 3" in error.message and "'d'" in error.message and "'D'" in error.message


def test_what_a_tokenizer_adds_to_a_text_is_no_matter_of_the_head(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 2)}
    base = Tiny(more_keys={key: (U32, 0) for key in ends})
    warnings = plan(tmp_path, base, head_only(more_keys=tokens(*TOKENS) | ends)).warnings
    assert [word in warning for word, warning in zip(("begins", "ends"), warnings, strict=True)] == [True, True]


def test_padding_at_the_tail_of_a_vocabulary_is_a_warning(tmp_path: Path) -> None:
    padded = tokens(*TOKENS, "<unused1>", "<unused2>")
    (warning,) = plan(tmp_path, Tiny(), head_only(more_keys=padded)).warnings
    assert "padding" in warning


def test_the_same_vocabulary_is_no_matter(tmp_path: Path) -> None:
    assert plan(tmp_path, Tiny(), head_only(tokenizer=True)).warnings == ()
    assert plan(tmp_path, Tiny(tokenizer=False), head_only(tokenizer=True)).warnings == ()


class TestExperts:
    """Heads that route experts, on the glm4moe toy: its trunk routes none."""

    @pytest.fixture
    def parts(self, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
        def make() -> tuple[Path, Path]:
            whole, base, donor = (tmp_path / f"{name}.gguf" for name in ("whole", "base", "donor"))
            write_architecture("glm4moe", whole)
            strip(whole, base)
            extract(whole, donor, kind="donor")
            return base, donor

        return make

    def without(self, path: Path, *names: str) -> None:
        """The file again, without some `glm4moe.*` keys."""
        edit(path, dict.fromkeys((f"glm4moe.{name}" for name in names), None))

    def test_what_a_dense_base_does_not_say_of_experts_the_donor_says(self, parts: Any) -> None:
        base, donor = parts()
        names = ("expert_count", "expert_used_count", "expert_shared_count", "expert_feed_forward_length")
        self.without(base, *names, "leading_dense_block_count")
        plan = plan_graft(base, donor)
        added = {change.key.removeprefix("glm4moe."): change.after for change in plan.keys if change.before is None}
        assert {name: added.get(name) for name in names} == dict(zip(names, ("2", "1", "1", "32"), strict=True))
        assert added["leading_dense_block_count"] == "2", "counted from the trunk's tensors"

    def test_if_neither_says_it_is_refused(self, parts: Any) -> None:
        base, donor = parts()
        for path in (base, donor):
            self.without(path, "expert_used_count")
        with pytest.raises(SlipstreamError) as caught:
            plan_graft(base, donor)
        assert caught.value.details == {"key": "glm4moe.expert_used_count"}

    def test_a_leading_dense_count_that_covers_the_head_is_refused(self, parts: Any) -> None:
        base, donor = parts()
        edit(base, {"glm4moe.leading_dense_block_count": (U32, 3)})
        with pytest.raises(SlipstreamError) as caught:
            plan_graft(base, donor)
        assert caught.value.details == {"key": "glm4moe.leading_dense_block_count"}

    @pytest.mark.parametrize("name", ["expert_count", "expert_shared_count"])
    def test_experts_of_another_kind_are_refused(self, parts: Any, name: str) -> None:
        base, donor = parts()
        edit(base, {f"glm4moe.{name}": (U32, 3)})
        with pytest.raises(SlipstreamError) as caught:
            plan_graft(base, donor)
        assert caught.value.details == {"key": f"glm4moe.{name}"}
        assert "3" in caught.value.message

    @pytest.mark.parametrize("name", ["expert_used_count", "expert_gating_func"])
    def test_experts_used_otherwise_are_a_warning(self, parts: Any, name: str) -> None:
        base, donor = parts()
        edit(base, {f"glm4moe.{name}": (U32, 3)})
        (warning,) = plan_graft(base, donor).warnings
        assert warning.startswith(f"glm4moe.{name} is 3")

    def test_a_shared_expert_needs_its_tensors(self, parts: Any) -> None:
        base, donor = parts()
        for path in (base, donor):
            edit(path, {"glm4moe.expert_shared_count": (U32, 0)})
        plan_graft(base, donor)


def edit(path: Path, keys: dict[str, Any]) -> None:
    """Write a file again with other keys; None takes one away."""
    model = open_model(path)
    edits = {key: None if value is None else entry(key, *value) for key, value in keys.items()}
    (file,) = new_files(model.header, kept_groups(model), edits, f"edited-{path.name}")
    write_files([lay_out(file)], path.parent, inputs=[path], overwrite=True, meter=Meter(0))
    path.with_name(file.name).replace(path)


@pytest.mark.parametrize("arch", ["qwen35", "qwen3next"])
def test_a_fused_head_fits_a_hybrid_whose_recurrent_blocks_call_another_matrix_so(tmp_path: Path, arch: str) -> None:
    whole, base, donor = (tmp_path / f"{name}.gguf" for name in ("whole", "base", "donor"))
    write_architecture(arch, whole)
    strip(whole, base)
    extract(whole, donor, kind="donor")
    header = read_file(donor)
    head = next(name for name in header.tensors if name.endswith("attn_q.weight")).removesuffix("attn_q.weight")
    parts = [f"{head}attn_{part}.weight" for part in "qkv"]
    rows = sum(header.tensors[name].shape[1] for name in parts)
    tensors = {n: (t.shape, t.type) for n, t in header.tensors.items() if n not in parts}
    keys = {key.name: (key.type, key.value) for key in header.keys.values() if key.type is not ValueType.ARRAY}
    fused = {**tensors, f"{head}attn_qkv.weight": ((header.tensors[parts[0]].shape[0], rows), F32)}
    donor.write_bytes(gguf(keys, fused))
    assert f"{head}attn_qkv.weight" in {change.name for change in plan_graft(base, donor).tensors}


def test_a_base_whose_announced_head_does_not_count_gets_one(tmp_path: Path) -> None:
    """deepseek4 without a head's tensors is all trunk, whatever it announces (src/models/deepseek4.cpp)."""
    whole, base, donor = (tmp_path / f"{name}.gguf" for name in ("whole", "base", "donor"))
    write_architecture("deepseek4", whole)
    strip(whole, base)
    extract(whole, donor, kind="donor")
    edit(base, {"deepseek4.nextn_predict_layers": (U32, 1)})
    (change,) = (change for change in plan_graft(base, donor).keys if change.key == "deepseek4.block_count")
    assert change.before is not None and change.after == str(int(change.before) + 1)


def test_types_are_kept_as_the_donor_has_them(tmp_path: Path) -> None:
    donor = head_only(more_tensors={"blk.7.attn_q.weight": ((WIDTH, WIDTH), TensorType.Q4_0)})
    types = {change.name: change.type for change in plan(tmp_path, Tiny(), donor).tensors}
    assert types["blk.2.attn_q.weight"] == "Q4_0" and types["blk.2.nextn.eh_proj.weight"] == "Q8_0"
