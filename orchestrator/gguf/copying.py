"""Bytes from file to file at the speed of the file system: shared where it can share, copied in the kernel otherwise.

Nothing passes through this process's memory, and holes stay holes.
"""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError, is_disk_full
from orchestrator.gguf.digest import hash_file
from orchestrator.gguf.source import unreadable

# Where source and target lie alike within so many bytes, every file system can share their blocks, and the kernel
# copies them in whole pieces: a third faster than at other places.
PIECE_BYTES = 1 << 16
# Most file systems can share where they lie alike within so many.
_BLOCK_BYTES = 4096
# ioctl_ficlonerange(2): _IOW(0x94, 13, struct file_clone_range).
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("<qQQQ")
# What a file system answers that cannot share these two files, or these places in them.
_CANNOT_SHARE = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
_CANNOT_COPY_IN_KERNEL = _CANNOT_SHARE
# sync_file_range(2); not in every C library.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2
# So often the meter hears of it; a kill is obeyed within one step too.
_SHARE_STEP_BYTES = 1 << 30
_COPY_STEP_BYTES = 32 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class CopyRange:
    """`length` bytes of a file, and where they go."""

    source: Path
    source_offset: int
    target_offset: int
    length: int


class Meter:
    """Counts bytes done and tells `heard(done, total)`; the total counts holes and shared blocks too."""

    def __init__(self, total_bytes: int, heard: Callable[[int, int], None] | None = None) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._heard = heard

    def advance(self, count: int) -> None:
        self.done_bytes += count
        if self._heard is not None:
            self._heard(self.done_bytes, self.total_bytes)


class Sources:
    """The files that are copied from, open until `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[Path, int] = {}

    def fd(self, path: Path) -> int:
        """Descriptor of a file, opened once."""
        if path not in self._open:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as e:
                raise unreadable(path, e) from e
            self._stack.callback(os.close, fd)
            self._open[path] = fd
        return self._open[path]

    def close(self) -> None:
        self._stack.close()


def copy_range(sources: Sources, target_fd: int, wanted: CopyRange, meter: Meter) -> None:
    """Bring one range into a target that is as long as it will be and reads as zeros there.

    OSError where the target cannot be written; SlipstreamError where the source ends too early.
    """
    fd = sources.fd(wanted.source)
    at, end = wanted.source_offset, wanted.source_offset + wanted.length
    shift = wanted.target_offset - wanted.source_offset
    # What lies behind the end of a file looks like a hole.
    if (size := os.fstat(fd).st_size) < end:
        raise _too_short(wanted.source.name, size)
    first, last = _whole_blocks(wanted)
    if first < last:
        _copy_data(fd, target_fd, at, first, shift, wanted.source.name, meter)
        at = _share(fd, target_fd, first, last, shift, meter)
    _copy_data(fd, target_fd, at, end, shift, wanted.source.name, meter)


def needed_bytes(sources: Sources, target_fd: int, ranges: tuple[CopyRange, ...]) -> int:
    """Bytes that the ranges will take on the target's file system: neither holes nor what is shared. Needs an empty
    target and leaves it empty."""
    can_share: dict[Path, bool] = {}
    needed = 0
    for wanted in ranges:
        fd = sources.fd(wanted.source)
        if wanted.source not in can_share:
            can_share[wanted.source] = _can_share(fd, target_fd)
        at, end = wanted.source_offset, wanted.source_offset + wanted.length
        first, last = _whole_blocks(wanted) if can_share[wanted.source] else (at, at)
        for start, stop in ((at, first), (max(last, at), end)):
            needed += sum(length for _, length in _data_segments(fd, start, stop))
    return needed


def sha256_of(path: Path, meter: Meter | None = None) -> str:
    """sha256 of a file, in constant memory."""
    try:
        return hash_file(path, meter.advance if meter is not None else None)
    except OSError as e:
        raise unreadable(path, e) from e


def same_bytes(sources: Sources, a: CopyRange, b_source: Path, b_offset: int) -> bool:
    """Whether a range of one file has the bytes of another file's range of that length."""
    one, other = sources.fd(a.source), sources.fd(b_source)
    try:
        for at in range(0, a.length, _BUFFER_BYTES):
            step = min(_BUFFER_BYTES, a.length - at)
            if os.pread(one, step, a.source_offset + at) != os.pread(other, step, b_offset + at):
                return False
    except OSError as e:
        raise unreadable(a.source, e) from e
    return True


def write_failed(name: str, error: OSError) -> SlipstreamError:
    """What a failed write of the file `name` becomes."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return SlipstreamError(Code.DISK_FULL, f"{name} could not be written: {reason}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SlipstreamError(Code.NOT_FOUND, f"{name} could not be written: its folder does not exist")
    return SlipstreamError(Code.MISCONFIGURED, f"{name} could not be written: {reason}")


def _too_short(name: str, size: int) -> SlipstreamError:
    return SlipstreamError(
        Code.INVALID_GGUF, f"{name} ends at byte {size}, where more was expected", details={"offset": size}
    )


def _whole_blocks(wanted: CopyRange) -> tuple[int, int]:
    """Begin and end, in the source, of the blocks that can be shared; both are the begin where there are none."""
    at, end = wanted.source_offset, wanted.source_offset + wanted.length
    for size in (PIECE_BYTES, _BLOCK_BYTES):
        first, last = -(-at // size) * size, end // size * size
        if (wanted.target_offset - at) % size == 0 and first < last:
            return first, last
    return at, at


def _share(fd: int, target_fd: int, at: int, end: int, shift: int, meter: Meter) -> int:
    """Share what can be shared, and answer from where on there is something left to copy."""
    while at < end:
        step = min(_SHARE_STEP_BYTES, end - at)
        try:
            fcntl.ioctl(target_fd, _FICLONERANGE, _CLONE_RANGE.pack(fd, at, step, at + shift))
        except OSError as e:
            if e.errno in _CANNOT_SHARE:
                return at
            raise
        at += step
        meter.advance(step)
    return at


def _can_share(fd: int, target_fd: int) -> bool:
    size = PIECE_BYTES if os.fstat(fd).st_size >= PIECE_BYTES else _BLOCK_BYTES
    if os.fstat(fd).st_size < size or not _share(fd, target_fd, 0, size, 0, Meter(size)):
        return False
    os.ftruncate(target_fd, 0)
    return True


def _copy_data(fd: int, target_fd: int, at: int, end: int, shift: int, name: str, meter: Meter) -> None:
    for start, length in _data_segments(fd, at, end):
        meter.advance(start - at)
        at = start + length
        while length > 0:
            step = min(_COPY_STEP_BYTES, length)
            count = _copy_step(fd, target_fd, start, step, shift)
            if count == 0:
                raise _too_short(name, start)
            _start_writing(target_fd, start + shift, count)
            start, length = start + count, length - count
            meter.advance(count)
    meter.advance(end - at)


def _copy_step(fd: int, target_fd: int, at: int, step: int, shift: int) -> int:
    try:
        if count := os.copy_file_range(fd, target_fd, step, at, at + shift):
            return count
    except OSError as e:
        if e.errno not in _CANNOT_COPY_IN_KERNEL:
            raise
    # Some file systems answer 0 instead of an error; a real end shows here too.
    piece = memoryview(os.pread(fd, min(step, _BUFFER_BYTES), at))
    done = 0
    while done < len(piece):
        done += os.pwrite(target_fd, piece[done:], at + shift + done)
    return done


def _start_writing(fd: int, offset: int, length: int) -> None:
    """Have the disk begin while the next step is copied, so that the sync at the end finds little left to do."""
    if _sync_file_range is not None:
        # That it cannot do so is no matter.
        _sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


def _data_segments(fd: int, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Offset and length of everything between two offsets that is no hole."""
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            if e.errno != errno.EINVAL:
                raise
            yield at, end - at  # a file system that knows no holes
            return
        if start >= end:
            return
        stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        yield start, stop - start
        at = stop
