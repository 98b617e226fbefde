"""Bytes of a file elsewhere, read over HTTP Range: for its header, before it is fetched."""

from types import TracebackType
from typing import Self

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.answers import Asked, Body, StartOver, accept, version_of
from orchestrator.store.http.connect import Broken
from orchestrator.store.http.limits import DEFAULT, Limits
from orchestrator.store.http.retry import Patience, Retry
from orchestrator.store.http.session import Answer, Session
from orchestrator.store.remote import RemoteFile

_FIRST_CHUNK_BYTES = 256 << 10
_LARGEST_CHUNK_BYTES = 16 << 20


class RemoteBytes:
    """A `gguf.ByteSource`. What was read from the start on is kept, and each request asks for twice as much.

    A server without ranges is refused, and so is reading more than `limit_bytes` in all.
    """

    def __init__(self, remote: RemoteFile, limits: Limits = DEFAULT, limit_bytes: int = 512 << 20) -> None:
        self.name = remote.name
        self.size_bytes = 0
        self._remote = remote
        self._limit_bytes = limit_bytes
        self._session = Session(limits)
        self._patience = Patience(f"{remote.name} from {remote.host}", limits)
        self._seen: Body | None = None
        self._front = bytearray()
        self._chunk_bytes = _FIRST_CHUNK_BYTES
        self._read_bytes = 0
        try:
            self._grow(1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def read_at(self, offset: int, length: int) -> bytes:
        """The bytes from `offset`; SlipstreamError when the file has no `length` of them, or they cannot be had."""
        stop = offset + length
        if stop > self.size_bytes:
            raise SlipstreamError(
                Code.INVALID_GGUF, f"{self.name} ends at byte {self.size_bytes}, where more was expected"
            )
        if offset > len(self._front) + self._chunk_bytes:
            far = bytearray()
            while len(far) < length:
                far += self._request(offset + len(far), stop)
            return bytes(far)
        self._grow(stop)
        return bytes(self._front[offset:stop])

    def _grow(self, stop: int) -> None:
        """Read on until `stop` is behind."""
        while len(self._front) < stop:
            ahead = max(stop, len(self._front) + self._chunk_bytes)
            end = ahead if self._seen is None else min(ahead, self.size_bytes)
            self._front += self._request(len(self._front), end)
            self._chunk_bytes = min(2 * self._chunk_bytes, _LARGEST_CHUNK_BYTES)

    def _request(self, start: int, stop: int) -> bytearray:
        """Bytes of a range; fewer if the file ends before, or the server gives fewer."""
        self._read_bytes += stop - start
        if self._read_bytes > self._limit_bytes:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"{self.name}: its header has more than {self._limit_bytes} bytes; gave up"
            )
        while True:
            try:
                return self._try(start, stop)
            except StartOver as e:
                raise self._no_ranges(str(e)) from e
            except Broken as e:
                self._patience.fail(str(e))
            except Retry as e:
                self._patience.fail(str(e), e.after_seconds)

    def _try(self, start: int, stop: int) -> bytearray:
        remote, asked = self._remote, Asked(start, stop, True)
        version = self._seen.version if self._seen else None
        answer = self._session.get(remote.url, asked.headers(version), token_host=remote.token_host)
        self._learn(answer, asked)
        content = bytearray(answer.read(stop - start))
        if not content:
            raise Broken("an answer without a byte came")
        self._patience.progress(start + len(content))
        return content

    def _learn(self, answer: Answer, asked: Asked) -> None:
        """The first answer says what the file is; the others must agree."""
        if self._seen is not None:
            accept(answer, self._remote, asked, self._seen.total_bytes, self._seen.version)
            return
        version = version_of(answer.headers)
        self._seen = accept(answer, self._remote, asked, self._remote.size_bytes, version)
        self.size_bytes = self._seen.total_bytes or 0

    def _no_ranges(self, reason: str) -> SlipstreamError:
        return SlipstreamError(
            Code.SOURCE_FAILED,
            f"the header of {self.name} cannot be read before the file is fetched: {reason}",
            hint=f"{self._remote.host} has to serve ranges for that; fetch the file, then inspect it",
        )
