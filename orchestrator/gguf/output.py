"""Puts new files in their place: whole under their names, or not at all, and never over an input."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.copying import Meter, Sources, copy_range, needed_bytes, write_failed
from orchestrator.gguf.writer import Blueprint

# As in the store: whoever lists a folder passes over what begins like this.
# Before the names of files that are not whole yet; whoever lists a folder passes them over.
BESIDE = ".beside-"
# The extents of a file that is mostly shared cost metadata; nobody fills a disk to the last block on purpose.
_SLACK_BYTES = 1 << 20


def write_files(
    files: Sequence[Blueprint], folder: Path, *, inputs: Sequence[Path], overwrite: bool, meter: Meter
) -> None:
    """Write files into a folder and sync them. The first is renamed into place last: of a split model it is the one
    that names the others.

    SlipstreamError conflict for an existing file (unless `overwrite`), for an input, and while another process writes
    the same file; disk_full.
    """
    check_targets([folder / file.name for file in files], inputs=inputs, overwrite=overwrite)
    with ExitStack() as stack:
        sources = Sources()
        stack.callback(sources.close)
        beside = [stack.enter_context(_beside(folder / file.name)) for file in files]
        with _reported(files[0].name):
            needed = sum(needed_bytes(sources, fd, file.ranges) for fd, file in zip(beside, files, strict=True))
        _check_room(folder, files, needed + sum(len(file.header) for file in files))
        for fd, file in zip(beside, files, strict=True):
            with _reported(file.name):
                _fill(sources, fd, file, meter)
        for file in reversed(files):
            with _reported(file.name):
                _put(folder / file.name, overwrite)
        with _reported(folder.name):
            sync_folder(folder)


def check_targets(targets: Sequence[Path], *, inputs: Sequence[Path], overwrite: bool) -> None:
    """SlipstreamError conflict where a target is an input, whatever it is called, or there already."""
    for target in targets:
        if not target.parent.is_dir():
            raise SlipstreamError(Code.NOT_FOUND, f"the folder {target.parent.name!r} for {target.name} does not exist")
        for path in inputs:
            with suppress(FileNotFoundError):
                if target.samefile(path):
                    raise SlipstreamError(
                        Code.CONFLICT,
                        f"{target.name} is the same file as the input {path.name}: an input stays as it is",
                    )
        if target.is_dir() or (not overwrite and os.path.lexists(target)):
            raise _exists(target)


def _exists(target: Path) -> SlipstreamError:
    if target.is_dir():
        return SlipstreamError(Code.CONFLICT, f"{target.name} is a folder, expected the name of a file to write")
    return SlipstreamError(Code.CONFLICT, f"{target.name} exists already", hint="--force writes over it")


@contextmanager
def _beside(target: Path) -> Iterator[int]:
    """An empty locked file beside a target; gone at the end unless it has been renamed."""
    path = _temporary(target)
    with _reported(target.name):
        fd = _locked(path, target.name)
    try:
        yield fd
    finally:
        if _is_at(fd, path):
            with suppress(OSError):
                path.unlink()
        os.close(fd)


def _temporary(target: Path) -> Path:
    return target.with_name(f"{BESIDE}{target.name}")


def _locked(path: Path, name: str) -> int:
    """A new file, locked. What a killed process has left under its name is removed, never written to: after a kill
    between link and unlink it may be the target itself."""
    for _ in range(10):
        with suppress(FileNotFoundError):
            left = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if not _lock(left):
                    break
                if _is_at(left, path):
                    path.unlink()
            finally:
                os.close(left)
        with suppress(FileExistsError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            if _lock(fd) and _is_at(fd, path):
                return fd
            os.close(fd)
    raise SlipstreamError(Code.CONFLICT, f"another process is writing {name}")


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _check_room(folder: Path, files: Sequence[Blueprint], needed: int) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < needed + _SLACK_BYTES:
        names = files[0].name if len(files) == 1 else f"{len(files)} shards of {files[0].name}"
        raise SlipstreamError(
            Code.DISK_FULL,
            f"{names} needs {needed} bytes, the disk has {free} left",
            details={"needed_bytes": needed, "free_bytes": free},
        )


def _fill(sources: Sources, fd: int, file: Blueprint, meter: Meter) -> None:
    os.ftruncate(fd, file.size_bytes)
    for wanted in file.ranges:
        copy_range(sources, fd, wanted, meter)
    done = 0
    while done < len(file.header):
        done += os.pwrite(fd, file.header[done:], done)
    os.fsync(fd)
    meter.advance(len(file.header))


def _put(target: Path, overwrite: bool) -> None:
    temporary = _temporary(target)
    if overwrite:
        temporary.replace(target)
        return
    try:
        # Unlike a rename, a link never replaces what somebody else has put there meanwhile.
        os.link(temporary, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:
        if os.path.lexists(target):
            raise _exists(target) from None
        temporary.rename(target)  # a file system without hard links
    else:
        temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Have the kernel put a folder's entries on disk, so that a rename in it outlives a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise write_failed(name, e) from e
