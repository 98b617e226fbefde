"""A model's files: one, or all shards of a split one."""

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.header import Header, TensorInfo
from orchestrator.gguf.reader import read_file

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True)
class Shard:
    """One file of a model."""

    path: Path
    header: Header


@dataclass(frozen=True, eq=False)
class GgufModel:
    """All files of a model. `tensors` tells for each tensor the index of its shard."""

    shards: tuple[Shard, ...]
    tensors: dict[str, tuple[int, TensorInfo]]

    @property
    def header(self) -> Header:
        """Header of the first file; only its keys count, as in llama.cpp."""
        return self.shards[0].header

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.header.architecture

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(shard.header.file_bytes for shard in self.shards)


def shard_names(name: str) -> tuple[str, ...]:
    """Names of all shards, told from the name of any (llama.cpp's llama_split_path); the name itself if it is none.

    `name` may have folders before it.
    """
    folder, slash, last = name.rpartition("/")
    if (found := _SHARD.fullmatch(last)) is None:
        return (name,)
    count = int(found["count"])
    if not 1 <= int(found["number"]) <= count:
        return (name,)
    return tuple(f"{folder}{slash}{shard_name(found['stem'], i, count)}" for i in range(count))


def shard_name(stem: str, index: int, count: int) -> str:
    """Name of the shard with an index from 0."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def shard_paths(path: Path, header: Header) -> list[Path]:
    """All files of the model that a file belongs to. Like llama.cpp, a file that says nothing of shards is whole,
    whatever its name."""
    is_shard = (header.integer(SPLIT_COUNT) or 1) > 1
    return [path.with_name(name) for name in shard_names(path.name)] if is_shard else [path]


def shard_stem(name: str) -> str:
    """The part of a name before the shard's number, or before `.gguf`."""
    found = _SHARD.fullmatch(name)
    return found["stem"] if found else name.removesuffix(".gguf")


def open_model(path: Path) -> GgufModel:
    """The model that a file, or any shard of a split one, belongs to.

    SlipstreamError not_found names the shards that are missing; invalid_gguf a shard that does not fit the others.
    """
    header = read_file(path)
    paths = shard_paths(path, header)
    if len(paths) > 1 and (missing := [p.name for p in paths if not p.is_file()]):
        raise SlipstreamError(
            Code.NOT_FOUND,
            f"{path.name} is one of {len(paths)} shards, and {len(missing)} are missing: {', '.join(missing[:5])}",
            details={"missing": missing},
        )
    return model_of([Shard(p, header if p == path else read_file(p)) for p in paths])


def model_of(shards: list[Shard]) -> GgufModel:
    """A model of shards that have been read; checks that they belong together."""
    first = shards[0].header
    announced = first.integer(SPLIT_COUNT) or 1
    if announced != len(shards):
        raise _unfit(
            first, SPLIT_COUNT, f"says {announced} shards, but by its name there are {len(shards)}: was it renamed?"
        )
    tensors: dict[str, tuple[int, TensorInfo]] = {}
    for index, shard in enumerate(shards):
        number = shard.header.integer(SPLIT_NUMBER)
        if len(shards) > 1 and number != index:
            raise _unfit(shard.header, SPLIT_NUMBER, f"is {number}, expected {index} for a shard of this name")
        for name, info in shard.header.tensors.items():
            if name in tensors:
                other = shards[tensors[name][0]].header.source_name
                raise SlipstreamError(
                    Code.INVALID_GGUF,
                    f"the tensor {name!r} is in {other} and in {shard.header.source_name}",
                    details={"tensor": name},
                )
            tensors[name] = (index, info)
    total = first.integer(SPLIT_TENSORS)
    if len(shards) > 1 and total is not None and total != len(tensors):
        raise _unfit(first, SPLIT_TENSORS, f"is {total}, but the shards hold {len(tensors)} tensors")
    return GgufModel(tuple(shards), tensors)


def _unfit(header: Header, key: str, what: str) -> SlipstreamError:
    return SlipstreamError(Code.INVALID_GGUF, f"{header.source_name}: {key} {what}", details={"key": key})
