"""A model is one file or all its shards, told from any of them; shards that do not belong together are refused."""

from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.model import open_model, shard_names, shard_stem
from orchestrator.gguf.types import TensorType, ValueType
from tests.support.gguf_bytes import Keys, gguf

F32 = TensorType.F32


def split(
    folder: Path, *, count: int = 3, stem: str = "model", numbers: list[int] | None = None, total: int = 3
) -> list[Path]:
    """A split model of one tensor a shard; the numbers in the files may be others than in their names."""
    paths = [folder / f"{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    for index, path in enumerate(paths):
        keys: Keys = {
            **({"general.architecture": "llama"} if index == 0 else {}),
            "split.no": (ValueType.UINT16, (numbers or list(range(count)))[index]),
            "split.count": (ValueType.UINT16, count),
            "split.tensors.count": (ValueType.INT32, total),
        }
        path.write_bytes(gguf(keys, {f"blk.{index}.a": ((8,), F32)}))
    return paths


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("model.gguf", ("model.gguf",)),
        ("a-00002-of-00002.gguf", ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")),
        ("Q4/a-b-00001-of-00002.gguf", ("Q4/a-b-00001-of-00002.gguf", "Q4/a-b-00002-of-00002.gguf")),
        ("a-00001-of-00001.gguf", ("a-00001-of-00001.gguf",)),
        ("a-00000-of-00002.gguf", ("a-00000-of-00002.gguf",)),
        ("a-00003-of-00002.gguf", ("a-00003-of-00002.gguf",)),
        ("a-1-of-2.gguf", ("a-1-of-2.gguf",)),
        ("a-00001-of-00002.gguf.part", ("a-00001-of-00002.gguf.part",)),
    ],
)
def test_shard_names_are_told_from_any(name: str, names: tuple[str, ...]) -> None:
    assert shard_names(name) == names


def test_stems() -> None:
    assert [shard_stem(n) for n in ("a-00002-of-00003.gguf", "a.gguf", "a")] == ["a", "a", "a"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_shard_opens_the_whole_model(tmp_path: Path, index: int) -> None:
    paths = split(tmp_path)
    model = open_model(paths[index])
    assert [shard.path for shard in model.shards] == paths
    assert {name: (shard, info.shape) for name, (shard, info) in model.tensors.items()} == {
        "blk.0.a": (0, (8,)),
        "blk.1.a": (1, (8,)),
        "blk.2.a": (2, (8,)),
    }
    assert model.architecture == "llama"
    assert model.size_bytes == sum(path.stat().st_size for path in paths)


def test_a_single_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf({"general.architecture": "llama"}, {"t": ((8,), F32)}))
    model = open_model(path)
    assert len(model.shards) == 1 and list(model.tensors) == ["t"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_whole_file_with_the_name_of_a_shard_is_whole(tmp_path: Path, number: int) -> None:
    """llama.cpp asks the file, not its name, whether there are more."""
    path = tmp_path / f"merged-0000{number}-of-00003.gguf"
    path.write_bytes(gguf({"general.architecture": "llama"}, {"t": ((8,), F32)}))
    assert [shard.path for shard in open_model(path).shards] == [path]


def refusal(path: Path) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        open_model(path)
    return caught.value


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    for path in paths[1:]:
        path.unlink()
    error = refusal(paths[0])
    assert error.code is Code.NOT_FOUND
    assert error.details == {"missing": [p.name for p in paths[1:]]}
    assert "2 are missing" in error.message and str(tmp_path) not in error.message


@pytest.mark.parametrize(
    ("numbers", "total", "message", "key"),
    [
        ([0, 0, 2], 3, "split.no is 0, expected 1", "split.no"),
        ([0, 2, 1], 3, "split.no is 2, expected 1", "split.no"),
        ([0, 1, 2], 4, "is 4, but the shards hold 3 tensors", "split.tensors.count"),
    ],
)
def test_shards_that_do_not_fit_are_refused(
    tmp_path: Path, numbers: list[int], total: int, message: str, key: str
) -> None:
    error = refusal(split(tmp_path, numbers=numbers, total=total)[0])
    assert error.code is Code.INVALID_GGUF
    assert message in error.message and error.details == {"key": key}


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    path = split(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    error = refusal(path)
    assert "says 3 shards, but by its name there are 1: was it renamed?" in error.message


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    twice = {"split.no": (ValueType.UINT16, 2), "split.count": (ValueType.UINT16, 3)}
    paths[2].write_bytes(gguf(twice, {"blk.1.a": ((8,), F32)}))
    error = refusal(paths[0])
    assert error.details == {"tensor": "blk.1.a"}
    assert paths[1].name in error.message and paths[2].name in error.message


def test_a_damaged_shard_is_refused_by_name(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].write_bytes(b"<html>" + bytes(100))
    assert refusal(paths[0]).message.startswith(f"{paths[1].name}: byte 0: not a GGUF file")
