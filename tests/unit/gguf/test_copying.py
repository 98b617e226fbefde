"""Ranges of real files, copied in every way that a kernel may offer."""

import errno
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.copying import (
    CopyRange,
    Meter,
    Sources,
    copy_range,
    needed_bytes,
    same_bytes,
    sha256_of,
    write_failed,
)

MIB = 1 << 20


@pytest.fixture
def sources() -> Iterator[Sources]:
    made = Sources()
    yield made
    made.close()


def noise(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def write(path: Path, *parts: bytes | int) -> bytes:
    """A file of bytes and of holes so many bytes long; its content."""
    content = b""
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, int):
                file.seek(part, os.SEEK_CUR)
                content += bytes(part)
            else:
                file.write(part)
                content += part
        file.truncate(len(content))
    return content


def copied(folder: Path, sources: Sources, size: int, *ranges: CopyRange, meter: Meter | None = None) -> Path:
    target = folder / "target"
    with target.open("w+b") as file:
        file.truncate(size)
        for wanted in ranges:
            copy_range(sources, file.fileno(), wanted, meter or Meter(size))
    return target


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.integers(1, 20_000).map(noise) | st.integers(1, 50_000), min_size=1, max_size=5),
    data=st.data(),
)
def test_any_range_of_any_file(tmp_path_factory: pytest.TempPathFactory, parts: list[Any], data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    content = write(folder / "source", *parts)
    start = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, len(content) - start))
    at = data.draw(st.integers(0, 10_000))
    sources, seen = Sources(), []
    meter = Meter(length, lambda done, total: seen.append((done, total)))
    target = copied(folder, sources, at + length + 7, CopyRange(folder / "source", start, at, length), meter=meter)
    sources.close()
    assert target.read_bytes() == bytes(at) + content[start : start + length] + bytes(7)
    assert meter.done_bytes == length
    assert seen == sorted(seen) and (not length or seen[-1] == (length, length))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, 0])
def test_without_help_of_the_kernel(
    tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Old kernels cannot copy between file systems, some file systems cannot at all, some answer 0."""

    def refuse(*arguments: Any) -> int:
        if number:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(os, "copy_file_range", refuse)
    content = write(tmp_path / "source", noise(3 * MIB + 17), 2 * MIB, noise(99))
    target = copied(tmp_path, sources, len(content), CopyRange(tmp_path / "source", 0, 0, len(content)))
    assert target.read_bytes() == content


def test_other_errors_are_errors(tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "copy_file_range", fail)
    write(tmp_path / "source", noise(100))
    with pytest.raises(OSError, match="I/O error"):
        copied(tmp_path, sources, 100, CopyRange(tmp_path / "source", 0, 0, 100))


def test_a_file_system_that_knows_no_holes(tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, position: int, whence: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    content = write(tmp_path / "source", noise(5000), MIB, noise(7))
    monkeypatch.setattr(os, "lseek", refuse)
    target = copied(tmp_path, sources, len(content), CopyRange(tmp_path / "source", 0, 0, len(content)))
    assert target.read_bytes() == content


def test_holes_stay_holes(tmp_path: Path, sources: Sources) -> None:
    gib = 1 << 30
    size = 4 * gib
    with (tmp_path / "source").open("wb") as file:
        file.truncate(size)
        for at in (0, 2 * gib, size - 4096):
            file.seek(at)
            file.write(b"x" * 4096)
    ranges = (CopyRange(tmp_path / "source", 0, 64, size),)
    with (tmp_path / "empty").open("w+b") as file:
        assert needed_bytes(sources, file.fileno(), ranges) == 3 * 4096
        assert file.seek(0, os.SEEK_END) == 0
    target = copied(tmp_path, sources, size + 64, *ranges)
    assert target.stat().st_size == size + 64
    assert target.stat().st_blocks * 512 < MIB
    with target.open("rb") as file:
        file.seek(2 * gib + 64)
        assert file.read(4097) == b"x" * 4096 + b"\0"


def test_a_source_that_has_become_shorter_is_told(tmp_path: Path, sources: Sources) -> None:
    write(tmp_path / "source", noise(100))
    with pytest.raises(SlipstreamError) as caught:
        copied(tmp_path, sources, 300, CopyRange(tmp_path / "source", 0, 0, 200))
    assert caught.value.code is Code.INVALID_GGUF


def test_a_source_that_is_not_there(tmp_path: Path, sources: Sources) -> None:
    with pytest.raises(SlipstreamError) as caught:
        sources.fd(tmp_path / "nothing")
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(SlipstreamError):
        sha256_of(tmp_path / "nothing")


def test_digest_and_comparison(tmp_path: Path, sources: Sources) -> None:
    content = write(tmp_path / "source", noise(5 * MIB + 3))
    meter = Meter(len(content))
    assert sha256_of(tmp_path / "source", meter) == hashlib.sha256(content).hexdigest()
    assert meter.done_bytes == len(content)
    write(tmp_path / "other", b"abc", content[:-1], b"?")
    wanted = CopyRange(tmp_path / "source", 0, 0, len(content))
    assert not same_bytes(sources, wanted, tmp_path / "other", 3)
    assert same_bytes(sources, CopyRange(tmp_path / "source", 0, 0, len(content) - 1), tmp_path / "other", 3)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, Code.DISK_FULL),
        (errno.EDQUOT, Code.DISK_FULL),
        (errno.ENOENT, Code.NOT_FOUND),
        (errno.EROFS, Code.MISCONFIGURED),
    ],
)
def test_what_a_failed_write_is_called(number: int, code: Code) -> None:
    error = write_failed("x.gguf", OSError(number, os.strerror(number), "/secret/x.gguf"))
    assert error.code is code
    assert "x.gguf" in error.message and "/secret" not in error.message
