"""The metrics pages of several servers at once, in a thread: plain sockets, one deadline for all.

On the event loop a client would take longer for eight servers than a whole scrape may.
"""

import selectors
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from orchestrator.servers.drivers.base import Child

_MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_OK = b"200"


@dataclass(frozen=True)
class Target:
    """A server to ask. The address is an IP address: looking up a name could take longer than all else."""

    number: int
    host: str
    port: int
    authorization: str = field(repr=False)

    @classmethod
    def of(cls, number: int, child: Child) -> "Target":
        """Instance `number`, whose child this is."""
        address = urlsplit(child.url)
        return cls(number, address.hostname or "", address.port or 80, child.authorization)

    def request(self) -> bytes:
        """Bytes of the request. A connection that is kept would hold up llama-server's end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = ("GET /metrics HTTP/1.1", f"Host: {host}:{self.port}", f"Authorization: {self.authorization}")
        return "\r\n".join((*lines, "Connection: close", "", "")).encode("latin-1")


class _Exchange:
    """One request under way, on a socket that never waits. `page` is set when its answer is whole and good."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.page: bytes | None = None
        self._unsent = target.request()
        self._answer = bytearray()
        self._body = 0
        self._end: int | None = None
        self.socket = socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET)
        try:
            self.socket.setblocking(False)
            # A number, or an error at once.
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, flags=flags)
            self.socket.connect_ex(found[0][4])
        except OSError:
            self.socket.close()
            raise

    def write(self) -> bool:
        """Send; true when all is sent."""
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
        return not self._unsent

    def read(self) -> bool:
        """Receive; true when nothing more is to come."""
        chunk = self.socket.recv(_CHUNK_BYTES)
        self._answer += chunk
        if self._end is None and (found := self._answer.find(_HEAD_END)) >= 0:
            self._end = self._read_head(found)
        if self._end is None and len(self._answer) > _CHUNK_BYTES:
            raise ValueError("its answer has no head")
        if self._end is not None and len(self._answer) >= self._end:
            self.page = bytes(self._answer[self._body : self._end])
            return True
        return not chunk

    def _read_head(self, end: int) -> int:
        """Where the answer ends."""
        status, *lines = bytes(self._answer[:end]).split(b"\r\n")
        if status.split(b" ")[1:2] != [_OK]:
            raise ValueError(f"it answered {status[:50]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        size = int(headers[b"content-length"])
        if size > _MOST_BYTES:
            raise ValueError(f"it answers with {size} bytes")
        self._body = end + len(_HEAD_END)
        return self._body + size


def read_pages(targets: Collection[Target], timeout_seconds: float) -> dict[int, bytes]:
    """Pages by number of the instance; what did not answer well in time is not among them."""
    deadline = time.monotonic() + timeout_seconds
    pages: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for target in targets:
            try:
                exchange = _Exchange(target)
            except OSError:
                continue
            selector.register(exchange.socket, selectors.EVENT_WRITE, exchange)
        try:
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    exchange = key.data
                    if _go_on(exchange, selector, is_writing=key.events == selectors.EVENT_WRITE):
                        continue
                    selector.unregister(exchange.socket)
                    exchange.socket.close()
                    if exchange.page is not None:
                        pages[exchange.target.number] = exchange.page
        finally:
            for key in list(selector.get_map().values()):
                key.data.socket.close()
    return pages


def _go_on(exchange: _Exchange, selector: selectors.BaseSelector, *, is_writing: bool) -> bool:
    """One step; false when the exchange is over, well or not."""
    try:
        if not is_writing:
            return not exchange.read()
        if exchange.write():
            selector.modify(exchange.socket, selectors.EVENT_READ, exchange)
        return True
    except (BlockingIOError, InterruptedError):
        return True
    except (OSError, ValueError, KeyError):
        return False
