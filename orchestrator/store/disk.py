"""Writing that survives a kill at any instant, and what a disk's refusals are called."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError, folder_refused, is_disk_full
from orchestrator.gguf.output import BESIDE, sync_folder

_LOCK_TIMEOUT_SECONDS = 60.0
_LOCK_POLL_SECONDS = 0.01
_BLOCK_BYTES = 512
_ROOM_HINT = "`slipstream gc --dry-run` says which stored files nobody needs"
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# What flock says on network file systems that have no locks.
_LOCKLESS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def require_cache(folder: Path) -> None:
    """SlipstreamError misconfigured when downloads could not be kept; a read-only file system is taken for meant so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        if e.errno != errno.EROFS:
            raise folder_refused("cache", folder, e) from e
        return
    if os.access(folder, os.W_OK | os.X_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return
    raise folder_refused("cache", folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def beside(path: Path) -> Path:
    """A place in the same folder that no other process or thread writes to."""
    return path.with_name(f"{BESIDE}{os.urandom(8).hex()}")


def write_beside(path: Path, data: bytes) -> None:
    """Write a small file: whole under its name, or not at all; on disk when this returns."""
    temporary = beside(path)
    try:
        with temporary.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Be the only one who renames and removes in a store; held for a few file operations at a time.

    SlipstreamError conflict when somebody else does not let go. The kernel frees the lock of a process that ends.
    """
    root.mkdir(parents=True, exist_ok=True)
    fd = os.open(root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while not try_lock(fd):
            if time.monotonic() > deadline:
                raise SlipstreamError(
                    Code.CONFLICT, f"another process has kept the store locked for {_LOCK_TIMEOUT_SECONDS:.0f} s"
                )
            time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file or folder for whoever holds `fd`; False when another descriptor has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_room(folder: Path, needed_bytes: int, what: str) -> None:
    """SlipstreamError disk_full when the file system of `folder` has less than `needed_bytes` left."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise SlipstreamError(
            Code.DISK_FULL,
            f"{what} needs {needed_bytes} bytes, the disk has {free_bytes} left",
            hint=_ROOM_HINT,
            details={"needed_bytes": needed_bytes, "free_bytes": free_bytes},
        )


def disk_bytes(path: Path) -> int:
    """Bytes that a file, or all files in a folder, take on disk; holes do not count."""
    files = [str(path)]
    if path.is_dir():
        files = [os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with suppress(OSError):
            facts = os.lstat(file)
            total += min(facts.st_size, facts.st_blocks * _BLOCK_BYTES)
    return total


def entries_in(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing where it is not there."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def folders_in(folder: Path) -> list[Path]:
    """Folders in a folder, in order; none where it is not there."""
    return [path for path in entries_in(folder) if path.is_dir() and not path.is_symlink()]


def disk_error(error: OSError, what: str) -> SlipstreamError:
    """What a failed write becomes; `what` names the file or folder as a client may see it."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return SlipstreamError(Code.DISK_FULL, f"{what} could not be written: {reason}", hint=_ROOM_HINT)
    if error.errno in _FORBIDDEN:
        return SlipstreamError(
            Code.MISCONFIGURED,
            f"{what} could not be written: {reason}",
            hint=f"give the cache folder to the user of Slipstream: chown -R {os.getuid()}:{os.getgid()} FOLDER",
        )
    if error.errno in _LOCKLESS:
        return SlipstreamError(
            Code.MISCONFIGURED,
            f"{what} could not be written: {reason}",
            hint="the file system of the cache folder has to know locks (flock): set SLIPSTREAM_CACHE to a local one",
        )
    return SlipstreamError(Code.SOURCE_FAILED, f"{what} could not be written: {reason}")
