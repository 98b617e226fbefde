"""The folder of a fetch that has not ended: its bytes, what of them counts, and who works on it.

`data` holds the bytes, `state.json` what was seen of the file and which ranges of `data` count, `lock` is held by
whoever works here. State is written after the bytes it speaks of are on disk: a kill at any instant leaves a state
that claims too little, never too much.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import Code, SlipstreamError, is_disk_full
from orchestrator.schemas.base import Sha256
from orchestrator.store.disk import disk_error, write_beside
from orchestrator.store.fetching.ranges import Ranges
from orchestrator.store.http.answers import strong_etag
from orchestrator.store.progress import Progress
from orchestrator.store.quarantine import set_aside
from orchestrator.store.remote import RemoteFile

_log = logging.getLogger(__name__)
_FORMAT = 1
_BLOCK_BYTES = 512


class _State(BaseModel):
    """What state.json holds. No address: a signed one would be a secret."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int = _FORMAT
    sha256: Sha256 | None = None
    size_bytes: int | None = None
    version: str | None = None
    done: list[tuple[int, int]] = []


@contextmanager
def hold(folder: Path, report: Progress, name: str) -> Iterator[None]:
    """Make the folder and hold its lock, waiting for whoever has it: the kernel frees it when they end."""
    try:
        fd = _lock(folder)
        while fd is None:
            report.phase("waiting", file=name)
            fd = _lock(folder, wait=True)
    except OSError as e:
        raise disk_error(e, name) from e
    try:
        yield
    finally:
        os.close(fd)


def _lock(folder: Path, *, wait: bool = False) -> int | None:
    """A descriptor that holds the lock; None if another has it, or has removed the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # A lock on a file that was unlinked while we waited keeps nobody out.
        if os.path.samestat(os.fstat(fd), os.stat(folder / "lock")):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


class Partial:
    """`data` and `state.json` of one fetch. The lock must be held.

    `total_bytes` and `version` are what the file elsewhere was seen to have; `done` is what counts of `data`.
    """

    def __init__(self, folder: Path, remote: RemoteFile) -> None:
        self.folder = folder
        self.remote = remote
        self.data = folder / "data"
        self.total_bytes = remote.size_bytes
        self.version: str | None = None
        self.done = Ranges()
        try:
            self.fd = os.open(self.data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise self.unwritable(e) from e
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    def _take_up(self) -> None:
        """Continue from what an earlier fetch of the same file has recorded, or start over."""
        state = self._read_state()
        if state is None or max((stop for _, stop in state.done), default=0) > os.fstat(self.fd).st_size:
            self.wipe()
        else:
            self.total_bytes, self.version, self.done = state.size_bytes, state.version, Ranges(state.done)

    def _read_state(self) -> _State | None:
        """The state, if it speaks of this very file and of bytes that can be continued."""
        remote = self.remote
        try:
            state = _State.model_validate_json((self.folder / "state.json").read_bytes())
        except (OSError, ValidationError):
            return None
        total = state.size_bytes
        is_sound = state.format == _FORMAT and all(
            0 <= start < stop and (total is None or stop <= total) for start, stop in state.done
        )
        is_same = state.sha256 == remote.sha256 and remote.size_bytes in (None, total)
        # Without strong ETag and without digest nothing could tell a changed file from the one begun for certain.
        is_proven = strong_etag(state.version) is not None or state.sha256 is not None
        return state if is_sound and is_same and is_proven else None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, as far as was recorded."""
        return self.total_bytes is not None and self.done.front >= self.total_bytes

    def wipe(self) -> None:
        """Forget every byte."""
        self.done, self.version, self.total_bytes = Ranges(), None, self.remote.size_bytes
        try:
            # State first: it must never speak of bytes that are gone.
            (self.folder / "state.json").unlink(missing_ok=True)
            os.ftruncate(self.fd, 0)
        except OSError as e:
            raise self.unwritable(e) from e

    def record(self, done: Ranges) -> None:
        """Make durable that `done` is there: its bytes first, then the state that says so. May raise OSError."""
        os.fdatasync(self.fd)
        remote = self.remote
        state = _State(sha256=remote.sha256, size_bytes=self.total_bytes, version=self.version, done=list(done))
        write_beside(self.folder / "state.json", state.model_dump_json().encode())
        self.done = done

    def check_space(self) -> None:
        """SlipstreamError disk_full for what the disk cannot hold; what is there already is counted."""
        if self.total_bytes is None:
            return
        # Where a file system compresses, or counts no blocks, what is there takes fewer of them than it has bytes.
        there_bytes = max(self.done.bytes, os.fstat(self.fd).st_blocks * _BLOCK_BYTES)
        need = max(0, self.total_bytes - there_bytes)
        if need > self._free_bytes():
            raise self._full(need)

    def quarantine(self, actual_sha256: str) -> SlipstreamError:
        """Move wrong bytes aside, with a note that names both digests; the error to raise."""
        remote, root = self.remote, self.folder.parent.parent
        try:
            (self.folder / "state.json").unlink(missing_ok=True)
            place = set_aside(
                root,
                self.data,
                self.folder.name,
                expected_sha256=remote.sha256 or "",
                actual_sha256=actual_sha256,
                origin=f"{remote.name} from {remote.host}",
            )
        except OSError as e:
            raise self.unwritable(e) from e
        _log.warning("%s: wrong bytes are kept as %s", remote.name, place)
        return SlipstreamError(
            Code.WRONG_BYTES,
            f"{remote.name} from {remote.host} has sha256 {actual_sha256}, expected {remote.sha256}",
            hint=f"the bytes lie in the store's quarantine as {place}; nothing was taken in",
            details={"actual_sha256": actual_sha256, "expected_sha256": remote.sha256},
        )

    def unwritable(self, error: OSError, need_bytes: int | None = None) -> SlipstreamError:
        """What a failed write becomes; on a full disk it says how much is needed and how much is free."""
        if is_disk_full(error):
            return self._full(need_bytes)
        return disk_error(error, self.remote.name)

    def close(self) -> None:
        """Let go of the data."""
        os.close(self.fd)

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def _full(self, need_bytes: int | None) -> SlipstreamError:
        need = "more bytes" if need_bytes is None else f"{need_bytes} more bytes"
        free_bytes = self._free_bytes()
        return SlipstreamError(
            Code.DISK_FULL,
            f"{self.remote.name} needs {need}, the disk has {free_bytes} left",
            hint="`slipstream gc --dry-run` says which stored files nobody needs; what came so far is kept",
            details={"needed_bytes": need_bytes, "free_bytes": free_bytes},
        )
