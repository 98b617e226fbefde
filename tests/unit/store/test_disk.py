import errno
import os
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.disk import disk_bytes, disk_error, locked, require_cache, require_room, write_beside
from tests.support.crash import dies_at

Usage = namedtuple("Usage", "total used free")


def test_a_small_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path, step, died = tmp_path / "f", 0, True
    write_beside(path, b"before")
    while died:
        step += 1
        died = dies_at(step, lambda: write_beside(path, b"after"))
        assert path.read_bytes() == (b"before" if died else b"after")
    assert step == 3


def test_what_could_not_be_written_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_beside(tmp_path / "f", b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number, code",
    [
        (errno.ENOSPC, Code.DISK_FULL),
        (errno.EDQUOT, Code.DISK_FULL),
        (errno.EACCES, Code.MISCONFIGURED),
        (errno.EROFS, Code.MISCONFIGURED),
        (errno.ENOLCK, Code.MISCONFIGURED),
        (errno.EIO, Code.SOURCE_FAILED),
    ],
)
def test_refusals_of_a_disk_are_told_apart(number: int, code: Code) -> None:
    error = disk_error(OSError(number, os.strerror(number), "/home/me/secret/place"), "f.gguf")
    assert error.code is code
    assert error.message.startswith("f.gguf could not be written: ") and os.strerror(number) in error.message
    assert "/home" not in error.message + (error.hint or "")
    assert (error.hint is None) == (code is Code.SOURCE_FAILED)


def test_a_cache_that_may_not_be_written_is_told_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_cache(tmp_path / "made" / "cache")
    assert (tmp_path / "made" / "cache").is_dir()
    # Whoever runs the tests may be root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SlipstreamError, match=f"the cache folder {tmp_path} cannot be written: Permission") as caught:
        require_cache(tmp_path)
    assert caught.value.code is Code.MISCONFIGURED
    assert caught.value.hint == f"give it to this user: chown -R {os.getuid()}:{os.getgid()} {tmp_path}"
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    with pytest.raises(SlipstreamError) as caught:
        require_cache(tmp_path)
    assert f"on the host, as root: chown -R {os.getuid()}:{os.getgid()} FOLDER" in str(caught.value.hint)
    assert "docker volume inspect" in str(caught.value.hint)


def test_a_cache_that_is_read_only_may_be_meant_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "mkdir", refuse)
        require_cache(tmp_path / "not there")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_RDONLY, 0)))
    require_cache(tmp_path)


def test_a_cache_that_is_no_folder_is_told_at_start(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(SlipstreamError, match="cannot be written: File exists"):
        require_cache(tmp_path / "cache")


def test_room_is_compared_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(100, 50, 50))
    require_room(tmp_path, 50, "f.gguf")
    with pytest.raises(SlipstreamError, match=r"f\.gguf needs 51 bytes, .*50") as caught:
        require_room(tmp_path, 51, "f.gguf")
    assert caught.value.code is Code.DISK_FULL


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    inside, most = 0, 0
    gate = threading.Barrier(6)

    def work() -> None:
        nonlocal inside, most
        gate.wait()
        for _ in range(5):
            with locked(tmp_path / "store"):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_bytes_on_disk_are_those_without_holes(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "whole").write_bytes(b"x" * 4096)
    with (tmp_path / "d" / "hole").open("wb") as file:
        file.truncate(1 << 30)
    assert disk_bytes(tmp_path / "d") == disk_bytes(tmp_path / "d" / "whole") == 4096
    assert disk_bytes(tmp_path / "gone") == 0
