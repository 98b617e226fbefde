"""HTTP for large files, over the standard library's client: redirects, kept connections, the token.

`http.client` reads into our own buffer: a gigabyte from loopback takes it 0.2 s of CPU where httpx takes 0.5 s.
"""

import http.client
import time
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from urllib.parse import quote, urljoin, urlsplit

from orchestrator import __version__
from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import origin, split
from orchestrator.store.http.connect import Broken, Line, open_line, reason
from orchestrator.store.http.limits import Limits
from orchestrator.store.http.tokens import hub_token

_REDIRECTS = 10
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
# A body up to this size is read to its end, to keep the connection; a longer one costs more than a new connection.
_DRAIN_BYTES = 64 << 10
# A read waits for a full buffer no longer than this, so that progress shows on slow lines.
_GATHER_SECONDS = 0.1
_URL_SAFE = "%/:=&?~#+!$,;'@()*[]"
_OURS = {"User-Agent": f"slipstream/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}


class Answer:
    """A response whose body is still to come."""

    def __init__(self, response: http.client.HTTPResponse, url: str) -> None:
        self.status = response.status
        self.headers: Message = response.headers
        self.url = url
        self._response = response
        self._left_bytes = None if response.chunked else response.length
        self._ended = False
        self._error: Broken | None = None

    @property
    def origin(self) -> str:
        """Who answered, after redirects."""
        return origin(self.url)

    def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer` as far as bytes come at once; 0 at the end of the body.

        Bytes that came before a failure are given first; Broken is raised by the next call.
        """
        if self._error is not None:
            raise self._error
        filled, deadline = 0, time.monotonic() + _GATHER_SECONDS
        while filled < len(buffer):
            try:
                count = self._read_once(buffer[filled:])
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as e:
                self._error = Broken(reason(e))
                if filled:
                    break
                raise self._error from e
            filled += count
            if count == 0 or time.monotonic() > deadline:
                break
        return filled

    def _read_once(self, buffer: memoryview) -> int:
        """What one read of the socket gives. Of a body whose length is told, an early end is IncompleteRead."""
        if self._ended or self._left_bytes == 0:
            self._ended = True
            return 0
        if self._response.chunked:
            part = self._response.read1(len(buffer))
            count = len(part)
            buffer[:count] = part
        else:
            count = self._response.fp.readinto1(buffer[: self._left_bytes])
        if self._left_bytes is not None:
            if count == 0:
                raise http.client.IncompleteRead(b"", self._left_bytes)
            self._left_bytes -= count
        self._ended = count == 0
        return count

    def read(self, limit_bytes: int) -> bytes:
        """At most `limit_bytes` of the body."""
        buffer = memoryview(bytearray(limit_bytes))
        filled = 0
        while filled < limit_bytes and (count := self.read_into(buffer[filled:])):
            filled += count
        return bytes(buffer[:filled])

    def close(self) -> bool:
        """Let go of the body. Whether the connection can carry another request."""
        reusable = (self._ended or self._left_bytes == 0) and not self._response.will_close and self._error is None
        with suppress(OSError):
            self._response.close()
        return reusable


class Session:
    """The connections of one thread, kept by origin. Only `abort` may be called from another thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lines: dict[str, Line] = {}
        self._answer: Answer | None = None
        self._aborted = False

    def get(self, url: str, headers: Mapping[str, str], *, token_host: str | None = None) -> Answer:
        """Ask for `url` and follow its redirects; the answer before is closed. Only headers are awaited.

        The token goes to `token_host` alone. Raises Broken, or SlipstreamError for what no second try can mend.
        """
        self.close_answer()
        if (parts := split(url)) is None:
            raise SlipstreamError(Code.SOURCE_FAILED, "the address has no host, or no port, that can be asked")
        home = parts.hostname
        for _ in range(_REDIRECTS):
            here = origin(url)
            sent = _OURS | dict(headers)
            if here == token_host and (token := hub_token()):
                sent["Authorization"] = f"Bearer {token}"
            answer = self._ask(url, here, sent)
            target = answer.headers.get("Location")
            if answer.status not in _REDIRECT_STATUSES or target is None:
                return answer
            with suppress(Broken):
                answer.read(_DRAIN_BYTES)
            self.close_answer()
            url = _redirected(url, target)
        raise SlipstreamError(Code.SOURCE_FAILED, f"{home} redirects in a circle, or more than {_REDIRECTS} times")

    def close_answer(self) -> None:
        """Let go of the last answer; its connection is kept if the body was read to its end."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.close() and (line := self._lines.pop(answer.origin, None)):
            line.close()

    def close(self) -> None:
        """Close every connection."""
        self.close_answer()
        while self._lines:
            self._lines.popitem()[1].close()

    def abort(self) -> None:
        """From another thread: whatever this session waits for ends soon, as Broken."""
        self._aborted = True
        for line in list(self._lines.values()):
            line.shut()

    def _ask(self, url: str, here: str, headers: dict[str, str]) -> Answer:
        parts = urlsplit(url)
        target = quote(parts.path or "/", safe=_URL_SAFE)
        if parts.query:
            target += f"?{quote(parts.query, safe=_URL_SAFE)}"
        while not self._aborted:
            line = self._lines.get(here)
            is_fresh = line is None
            if line is None:
                line = self._lines[here] = open_line(url, self._limits)
            if self._aborted:
                break
            try:
                line.connection.request("GET", line.prefix + target, headers=headers | line.headers)
                response = line.connection.getresponse()
            except (OSError, http.client.HTTPException, ValueError) as e:
                self._lines.pop(here).close()
                # A kept connection may have been closed while it lay idle: that says nothing about the server.
                if is_fresh or isinstance(e, TimeoutError):
                    raise Broken(reason(e)) from e
                continue
            self._answer = Answer(response, url)
            return self._answer
        raise Broken("given up")


def _redirected(url: str, target: str) -> str:
    """Where a redirect leads; never from TLS to plain text, nor away from HTTP."""
    before = urlsplit(url)
    # The client reads headers as Latin-1; an address that is not plain ASCII comes as UTF-8.
    with suppress(UnicodeError):
        target = target.encode("latin-1").decode()
    after = None
    with suppress(ValueError):
        after = split(to := urljoin(url, target))
    if after is None:
        raise SlipstreamError(Code.SOURCE_FAILED, f"{before.hostname} redirects to what is no address")
    if after.scheme not in ("http", "https") or (before.scheme == "https" and after.scheme == "http"):
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"{before.hostname} redirects from {before.scheme} to {after.scheme or 'nowhere'}; expected https",
        )
    return to
