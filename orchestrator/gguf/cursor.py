"""Reads what a header consists of, one after the other, and no further than it must."""

import struct

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.source import ByteSource

_FIRST_READ_BYTES = 1 << 20
_LARGEST_READ_BYTES = 1 << 23
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A place in the first bytes of a file. Errors name it, and the key or tensor in `_what` that stands there.

    Nothing beyond `limit` is read, whatever the file claims.
    """

    def __init__(self, source: ByteSource, limit: int) -> None:
        self._source = source
        self._buffer = bytearray()
        self._limit = min(source.size_bytes, limit)
        self._at = 0
        self._what: dict[str, str] = {}

    def _string(self, what: str, max_bytes: int = 0xFFFF) -> str:
        length = self._u64()
        if length > max_bytes:
            raise self._wrong(f"{what} has {length} bytes, expected {max_bytes} at most", back=8)
        self._need(length)
        raw = bytes(self._buffer[self._at : self._at + length])
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._wrong(f"{what} is no UTF-8: {raw[:40]!r}", back=length) from None

    def _u32(self) -> int:
        self._need(4)
        self._at += 4
        return int(_U32.unpack_from(self._buffer, self._at - 4)[0])

    def _u64(self) -> int:
        self._need(8)
        self._at += 8
        return int(_U64.unpack_from(self._buffer, self._at - 8)[0])

    def _pass_over(self, length: int, what: str) -> None:
        self._at = self._bounded(self._at + length, what)

    def _bounded(self, end: int, what: str) -> int:
        if end > self._limit:
            limit = "the file" if self._limit == self._source.size_bytes else "the largest header read here"
            raise self._wrong(f"{what} ends at byte {end}, but {limit} ends at {self._limit}")
        self._fill(end)
        return end

    def _check_room(self, length: int, what: str) -> None:
        if self._at + length > self._limit:
            raise self._wrong(f"{what} cannot fit into the {self._limit - self._at} bytes that are left")

    def _need(self, length: int) -> None:
        self._bounded(self._at + length, "the header")

    def _fill(self, end: int) -> None:
        if end <= len(self._buffer):
            return
        wanted = min(max(end, _FIRST_READ_BYTES, 2 * len(self._buffer)), self._limit)
        while (have := len(self._buffer)) < wanted:
            self._buffer += self._source.read_at(have, min(wanted - have, _LARGEST_READ_BYTES))

    def _wrong(self, message: str, *, at: int | None = None, back: int = 0) -> SlipstreamError:
        offset = self._at - back if at is None else at
        where = "".join(f", {kind} {name!r}" for kind, name in self._what.items())
        return SlipstreamError(
            Code.INVALID_GGUF,
            f"{self._source.name}: byte {offset}{where}: {message}",
            details={"offset": offset, **self._what},
        )
