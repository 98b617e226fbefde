"""Where the bytes of a header come from: a file here, or anything else that can be read at an offset."""

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from orchestrator.errors import Code, SlipstreamError


class ByteSource(Protocol):
    """Bytes of known number. `read_at` gives exactly `length` bytes or raises SlipstreamError."""

    @property
    def name(self) -> str:
        """Name of the file without its folder, for messages."""

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""

    def read_at(self, offset: int, length: int) -> bytes:
        """The bytes from `offset`."""


class FileBytes:
    """A file on this machine, open until `close`."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            # A pipe that nobody writes to would be waited for.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise unreadable(path, e) from e
        self.size_bytes = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def read_at(self, offset: int, length: int) -> bytes:
        """The bytes from `offset`; a file that has become shorter meanwhile is an error."""
        parts: list[bytes] = []
        while length > 0:
            try:
                part = os.pread(self._fd, length, offset)
            except OSError as e:
                raise SlipstreamError(Code.INVALID_GGUF, f"{self.name} cannot be read: {e.strerror}") from e
            if not part:
                raise SlipstreamError(Code.INVALID_GGUF, f"{self.name} ends at byte {offset}, where more was expected")
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def unreadable(path: Path, error: OSError) -> SlipstreamError:
    """Why a file cannot be opened, as an error."""
    if isinstance(error, FileNotFoundError):
        return SlipstreamError(Code.NOT_FOUND, f"there is no file {path.name!r}")
    return SlipstreamError(Code.INVALID_GGUF, f"{path.name} cannot be read: {error.strerror}")
