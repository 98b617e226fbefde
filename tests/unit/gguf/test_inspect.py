"""What inspect tells of a file: its role from the tensors, its blocks, its head, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.architectures import ARCHITECTURES
from orchestrator.gguf.inspect import inspect_file, inspect_header, inspect_headers, inspect_model
from orchestrator.gguf.model import open_model
from orchestrator.gguf.reader import read_header
from orchestrator.gguf.types import TensorType, ValueType
from orchestrator.gguf.writer import PADDING_KEY
from orchestrator.schemas.gguf import Inspection
from tests.support.gguf_bytes import Items, gguf
from tests.unit.gguf import made
from tests.unit.gguf.test_model import split
from tests.unit.gguf.test_reader import Bytes

F32 = TensorType.F32
DRAFTING = [name for name, architecture in ARCHITECTURES.items() if architecture.drafts_with_mtp]


def inspect(keys: dict[str, Any], tensors: dict[str, Any]) -> Inspection:
    return inspect_header(read_header(Bytes(gguf(keys, tensors))))


def without(tensors: dict[str, Any], *names: str) -> dict[str, Any]:
    assert names and set(names) <= tensors.keys()
    return {name: info for name, info in tensors.items() if name not in names}


def codes(inspection: Inspection) -> list[str]:
    return [p.code if p.severity == "error" else f"{p.code} (warning)" for p in inspection.problems]


def test_a_model_with_a_head_is_told() -> None:
    keys, tensors = made.whole(expert_shared_count=1)
    seen = inspect({**keys, "slipstream.graft.tool": "1.0", "slipstream.graft.n": 3, PADDING_KEY: "..."}, tensors)
    assert (seen.architecture, seen.name, seen.role, seen.kind) == ("glm4moe", "made", "model", "attention")
    assert (seen.blocks, seen.trunk_blocks, seen.embedding_length, seen.context_length) == (3, 2, 8, 512)
    assert seen.head is not None and seen.drafts_with_mtp
    assert (seen.head.blocks, seen.head.missing) == ((2,), ())
    assert (seen.head.own_embeddings, seen.head.own_output) == (False, False)
    head = made.head_of("glm4moe", 2)
    assert seen.head.tensors == len(head) == sum(seen.head.types.values())
    assert seen.head.size_bytes == sum(type_.size_of(shape) for shape, type_ in head.values())
    assert seen.quant == "F32" and seen.type_bytes["Q8_0"] == 34 * seen.types["Q8_0"]
    assert seen.provenance == {"slipstream.graft.tool": "1.0", "slipstream.graft.n": "3"}
    assert seen.tokenizer is not None and seen.tokenizer.tokens == 4
    assert seen.memory is not None and seen.memory.head_bytes == seen.head.size_bytes
    assert codes(seen) == []


@pytest.mark.parametrize("arch", DRAFTING)
def test_every_architecture_that_drafts_is_clean_when_whole(arch: str) -> None:
    for files in (made.whole(arch), made.drafter(arch)):
        seen = inspect(*files)
        assert codes(seen) == []
        assert seen.role == ("model" if files[1].keys() & made.trunk_of(arch, 1).keys() else "drafter")
        assert seen.kind == ARCHITECTURES[arch].kind


def test_own_embeddings_and_output_are_told() -> None:
    keys, tensors = made.whole()
    own = {f"blk.2.nextn.{name}.weight": ((8, 4), F32) for name in ("embed_tokens", "shared_head_head")}
    seen = inspect(keys, tensors | own)
    assert seen.head is not None and seen.head.own_embeddings and seen.head.own_output


@pytest.mark.parametrize(
    ("role", "keys", "tensors"),
    [
        ("drafter", *made.drafter()),
        ("donor", made.keys("glm4moe", 2, 1), made.head_of("glm4moe", 2)),
        (
            "drafter",
            made.keys("eagle3", 1),
            made.around("llama") | made.trunk_of("llama", 1) | {"fc.weight": ((8,), F32)},
        ),
        ("drafter", made.keys("gemma4-assistant", 0, 2), made.around("gemma4") | made.trunk_of("gemma4", 2)),
        ("mmproj", {"general.architecture": "clip"}, {"v.blk.0.ln1.weight": ((8,), F32)}),
        ("mmproj", {"general.architecture": "x", "general.type": "mmproj"}, {"mm.0.weight": ((8,), F32)}),
        ("vocabulary", made.keys("llama", 1), {}),
        ("adapter", {"general.architecture": "llama", "general.type": "adapter"}, {"blk.0.a.lora_a": ((8,), F32)}),
        ("imatrix", {"general.type": "imatrix"}, {"blk.0.attn_q.weight.in_sum2": ((8,), F32)}),
        ("model", made.keys("llama", 1), made.around("llama") | made.trunk_of("llama", 1)),
        ("other", {"general.architecture": "llama"}, {"some.weight": ((8,), F32)}),
        ("other", {}, {}),
    ],
)
def test_roles_are_told_from_tensors(role: str, keys: dict[str, Any], tensors: dict[str, Any]) -> None:
    assert inspect(keys, tensors).role == role


@pytest.mark.parametrize(
    ("arch", "kind"),
    [("llama", "attention"), ("qwen35", "hybrid"), ("jamba", "hybrid"), ("mamba", "recurrent"), ("rwkv7", "recurrent")],
)
def test_kinds(arch: str, kind: str) -> None:
    assert inspect(made.keys(arch, 1), made.around(arch) | made.trunk_of(arch, 1)).kind == kind


TRUNK = made.around("glm4moe") | made.trunk_of("glm4moe", 2)
QWEN_TRUNK = made.around("qwen35") | made.trunk_of("qwen35", 2)
NEXTN = [f"blk.2.nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm")]


@pytest.mark.parametrize(
    ("keys", "tensors", "expected", "numbers"),
    [
        # The announcement of a head that is not there.
        (made.keys("glm4moe", 2, 1), TRUNK, "head_missing (warning)", "block_count is 3 and nextn_predict_layers 1"),
        (made.keys("qwen35", 2, 1), QWEN_TRUNK, "head_missing", "does not load such a file"),
        # A head that is not announced, or at another place.
        (made.keys("glm4moe", 3), made.whole()[1], "blocks_disagree", "trunk of blocks 0 to 1 and a head of block 2"),
        (made.keys("glm4moe", 1, 1), made.whole()[1], "blocks_disagree", "block 0 for the trunk and block 1"),
        (made.keys("glm4moe", 2, 2), made.whole()[1], "blocks_disagree", "blocks 2 to 3 for a head"),
        (made.keys("glm4moe", 3), TRUNK, "blocks_disagree", "blocks 0 to 2 for the trunk"),
        (made.keys("glm4moe", 1), TRUNK, "blocks_disagree", "block 0 for the trunk and no blocks for a head"),
        (
            made.keys("glm4moe", 3),
            without(TRUNK, "blk.1.attn_norm.weight", "blk.1.ffn_down.weight") | {"blk.2.ffn_up.weight": ((8,), F32)},
            "blocks_disagree",
            "a trunk of blocks 0, 2",
        ),
        # A head without some of its tensors.
        (made.keys("glm4moe", 2, 1), without(made.whole()[1], *NEXTN), "missing_head_tensor", "no nextn.* tensor"),
        (made.keys("glm4moe", 2, 1), without(made.whole()[1], NEXTN[1]), "missing_head_tensor", NEXTN[1]),
        (
            made.keys("glm4moe", 2, 1, expert_shared_count=1),
            without(made.whole()[1], "blk.2.ffn_up_shexp.weight"),
            "missing_head_tensor",
            "blk.2.ffn_up_shexp.weight",
        ),
        # More of a head than llama.cpp takes.
        (*made.whole(heads=2), "too_many_head_blocks", "has 2 blocks, and llama.cpp drafts with 1"),
        (
            made.keys("bailingmoe3", 2, 1),
            made.whole("bailingmoe3")[1] | {"blk.2.nextn.shared_head_norm.weight": ((8,), F32)},
            "unknown_head_tensor",
            "blk.2.nextn.shared_head_norm.weight",
        ),
        (
            made.keys("glm4moe", 2, 1, leading_dense_block_count=3),
            made.whole()[1],
            "head_not_moe",
            "leading_dense_block_count is 3",
        ),
        (
            made.keys("glm4", 2, 1),
            made.around("llama") | made.trunk_of("llama", 2) | {"blk.2.nextn.enorm.weight": ((8,), F32)},
            "mtp_unsupported (warning)",
            "has no graph for it in the architecture 'glm4'",
        ),
        # Arrays with a value a block.
        (
            made.keys("glm4moe", 2, 1, attention__head_count_kv=Items(ValueType.INT32, [1, 1])),
            made.whole()[1],
            "array_length",
            "attention.head_count_kv has 2 values, expected 3",
        ),
        (
            made.keys("step35", 2, 1, attention__sliding_window_pattern=Items(ValueType.BOOL, [True, False])),
            made.whole("step35")[1],
            "array_length (warning)",
            "2 values for 3 blocks",
        ),
        (
            made.keys("glm-dsa", 2, 1, attention__indexer__types=Items(ValueType.UINT32, [1, 0, 1])),
            made.whole("glm-dsa")[1],
            "array_length",
            "expected 2: block_count is 3",
        ),
        (
            made.keys("qwen4exp", 2, 1, attention__compress_ratios=Items(ValueType.INT32, [4] * 4)),
            made.whole("qwen4exp")[1],
            "array_length",
            "attention.compress_ratios has 4 values for 3 blocks",
        ),
        (
            made.keys("deepseek4", 2, 1, attention__compress_ratios=Items(ValueType.INT32, [4, 0])),
            made.whole("deepseek4")[1],
            "array_length",
            "attention.compress_ratios has 2 values for 3 blocks",
        ),
        # Vocabulary, width, architecture, depth.
        (
            made.keys("glm4moe", 2, tokens=("a", "b")),
            TRUNK,
            "vocabulary_size_disagrees",
            "4 rows, but the tokenizer 2 tokens",
        ),
        (made.keys("glm4moe", 2, embedding_length=16), TRUNK, "width_disagrees", "is 16, but"),
        (
            {k: v for k, v in made.keys("glm4moe", 2).items() if k != "tokenizer.ggml.model"},
            TRUNK,
            "vocabulary_missing",
            "no tokenizer.ggml.model",
        ),
        (
            made.keys("glm4moe", 2) | {"tokenizer.ggml.tokens": Items(ValueType.INT32, [1, 2, 3, 4])},
            TRUNK,
            "vocabulary_missing",
            "no tokenizer.ggml.tokens",
        ),
        (
            made.keys("glm4moe", 2) | {"tokenizer.ggml.model": "bpe9"},
            TRUNK,
            "unknown_tokenizer",
            "does not know the tokenizer 'bpe9'",
        ),
        (
            made.keys("glm4moe", 2) | {"tokenizer.ggml.pre": "qwen9"},
            TRUNK,
            "unknown_pre_tokenizer",
            "does not know the pre-tokenizer 'qwen9'",
        ),
        (
            made.keys("glm4moe", 2) | {"tokenizer.ggml.merges": 1},
            TRUNK,
            "merges_missing",
            "no tokenizer.ggml.merges",
        ),
        (
            made.keys("glm4moe", 2) | {"tokenizer.ggml.scores": Items(ValueType.FLOAT32, [0.0])},
            TRUNK,
            "array_length",
            "tokenizer.ggml.scores has 1 values for 4 tokens",
        ),
        (made.keys("llama9", 2), TRUNK, "unknown_architecture", "'llama9'"),
        (made.keys("glm4moe", 2, block_count=2**32 - 1), TRUNK, "block_count_invalid", "block_count is 4294967295"),
        (made.keys("glm4moe", 2, block_count=1.5), TRUNK, "block_count_invalid", "block_count is None"),
        (made.keys("glm4moe", 2, nextn_predict_layers=3), TRUNK, "block_count_invalid", "nextn_predict_layers 3"),
    ],
)
def test_problems_are_told_with_their_numbers(
    keys: dict[str, Any], tensors: dict[str, Any], expected: str, numbers: str
) -> None:
    seen = inspect(keys, tensors)
    assert codes(seen) == [expected]
    assert numbers in seen.problems[0].message


def test_arrays_that_fit_and_other_arrays_are_no_problem() -> None:
    arrays: dict[str, Any] = {
        "attention__head_count_kv": Items(ValueType.INT32, [1, 1, 1]),
        "attention__indexer__types": Items(ValueType.UINT32, [1, 0]),
        "rope__dimension_sections": Items(ValueType.INT32, [1, 1, 1, 0]),
    }
    assert codes(inspect(made.keys("glm-dsa", 2, 1, **arrays), made.whole("glm-dsa")[1])) == []
    ratios = Items(ValueType.INT32, [4] * 9)
    longer = inspect(made.keys("deepseek4", 2, 1, attention__compress_ratios=ratios), made.whole("deepseek4")[1])
    assert codes(longer) == []


@pytest.mark.parametrize(
    ("model", "pre"), [("llama", "qwen9"), ("gpt2", ""), ("none", "qwen9"), ("t5", "default"), ("gpt2", "qwen35")]
)
def test_tokenizers_that_load_are_no_problem(model: str, pre: str) -> None:
    keys = made.keys("glm4moe", 2) | {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre}
    assert codes(inspect(keys, TRUNK)) == []


def test_scales_of_head_tensors_are_no_strangers() -> None:
    keys, tensors = made.whole("qwen35")
    assert codes(inspect(keys, tensors | {"blk.2.nextn.eh_proj.scale": ((1,), F32)})) == []


def test_several_blocks_are_right_where_llama_cpp_chains_them() -> None:
    seen = inspect(*made.whole("step35", heads=3))
    assert codes(seen) == []
    assert seen.head is not None and seen.head.blocks == (2, 3, 4)


def test_texts_from_the_file_are_cut() -> None:
    keys, tensors = made.whole()
    keys |= {"general.name": "n" * 10_000, "general.architecture": "x" * 10_000, "slipstream.x": "p" * 10_000}
    seen = inspect(keys, tensors)
    assert seen.name is not None
    assert all(len(text) == 200 for text in (seen.name, seen.architecture, seen.provenance["slipstream.x"]))
    assert len(seen.problems[0].message) < 400


def test_a_split_model_is_seen_whole_from_any_shard(tmp_path: Path) -> None:
    paths = split(tmp_path)
    seen = [inspect_file(path) for path in paths]
    assert seen[0] == seen[1] == seen[2] == inspect_model(open_model(paths[1]))
    assert seen[0].file == paths[0].name and seen[0].tensors == 3
    assert seen[0].shards == tuple(path.name for path in paths)
    assert seen[0].size_bytes == sum(path.stat().st_size for path in paths)


def test_missing_shards_are_a_problem_not_an_error(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    seen = inspect_file(paths[2])
    assert seen.missing_shards == (paths[1].name,)
    assert seen.shards == (paths[0].name, paths[2].name)
    assert "missing_shards" in codes(seen)
    assert paths[1].name in seen.problems[0].message
    with pytest.raises(SlipstreamError) as caught:
        inspect_file(paths[1])
    assert caught.value.code is Code.NOT_FOUND


def test_a_renamed_shard_is_a_problem_and_one_alone_a_warning(tmp_path: Path) -> None:
    path = split(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    assert "split_disagrees" in codes(inspect_file(path))


def test_a_remote_split_model_is_seen_by_its_headers(tmp_path: Path) -> None:
    paths = split(tmp_path)
    sources = [Bytes(path.read_bytes()) for path in paths]
    for source, path in zip(sources, paths, strict=True):
        source.name = path.name
    headers = [read_header(source) for source in sources]
    assert inspect_headers(headers) == inspect_file(paths[0])
    part = inspect_headers(headers[:1], [path.name for path in paths[1:]])
    assert part.missing_shards == tuple(path.name for path in paths[1:])


def test_many_blocks_of_a_hostile_head_are_looked_at_in_no_time() -> None:
    hostile = {f"blk.{n}.nextn.x": ((1,), F32) for n in range(20_000)}
    seen = inspect(made.keys("glm4moe", 2, 1), made.around("glm4moe") | hostile)
    assert seen.head is not None and len(seen.head.missing) < 512 * 40
    assert "too_many_head_blocks" in codes(seen)
