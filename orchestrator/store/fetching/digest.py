"""sha256 of a file while it is written: a thread reads behind the writers, from the page cache."""

import hashlib
import os
import threading
from collections.abc import Callable

from orchestrator.errors import Code, SlipstreamError

_BUFFER_BYTES = 1 << 20


class Follower:
    """Digests the file from its start as far as it is known to be there.

    It reads what lies on disk, not what was received: bytes of an earlier fetch are proven like those of this one.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._digest = hashlib.sha256()
        self._changed = threading.Condition()
        self._front_bytes = 0
        self.done_bytes = 0
        """How much of the file is in the digest."""
        self._is_stopped = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="digest", daemon=True)
        self._thread.start()

    def follow(self, front_bytes: int) -> None:
        """Everything before `front_bytes` is there."""
        # Read without the lock: only one thread moves the front at a time, and it only grows.
        if front_bytes - self._front_bytes >= _BUFFER_BYTES:
            self._set_front(front_bytes)

    def finish(self, total_bytes: int, on_progress: Callable[[int], None]) -> str:
        """The digest of the first `total_bytes`, in hex, once they are read; `on_progress` hears how far it is."""
        self._set_front(total_bytes)
        with self._changed:
            while self.done_bytes < total_bytes and self._error is None:
                self._changed.wait(0.2)
                on_progress(self.done_bytes)
        self.stop()
        if self._error is not None:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"{self._name} could not be read back: {self._error.strerror}"
            ) from self._error
        return self._digest.hexdigest()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _set_front(self, front_bytes: int) -> None:
        with self._changed:
            self._front_bytes = max(self._front_bytes, front_bytes)
            self._changed.notify_all()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped or self._front_bytes > self.done_bytes)
                if self._is_stopped:
                    return
                front = self._front_bytes
            try:
                self._read_to(front, buffer)
            except OSError as e:
                with self._changed:
                    self._error = e
                    self._changed.notify_all()
                return

    def _read_to(self, front_bytes: int, buffer: memoryview) -> None:
        while self.done_bytes < front_bytes and not self._is_stopped:
            count = os.preadv(self._fd, [buffer[: front_bytes - self.done_bytes]], self.done_bytes)
            if count == 0:
                raise OSError(0, "it is shorter than what was written")
            self._digest.update(buffer[:count])
            with self._changed:
                self.done_bytes += count
                if self.done_bytes == front_bytes:
                    self._changed.notify_all()
