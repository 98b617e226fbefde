"""The hub as tests see it: what it has, what it was asked, what goes wrong."""

import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hub.faults import Fault, Kind
from tests.support.hub.repositories import HubFile, Repository
from tests.support.hub.server import Request, Server


class Hub:
    """Two servers in threads: the hub on 127.0.0.1, the content host on another port of `localhost`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.prefix = ""
        """Path before every other on the hub, as mirrors have one; nothing is served without it."""
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        """New names of repositories by the old ones, which redirect."""
        self.plain: dict[str, Path] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.errors: list[str] = []
        self.tokens: set[str] = set()
        self.weak_etags = False
        self.ranges = True
        """Whether ranges are served, and offered."""
        self.bytes_per_second: float | None = None
        """What one connection gets at most."""
        self.at_once: int | None = None
        """How many bodies of files are sent at the same time; who asks for more gets `at_once_status`."""
        self.at_once_status = 429
        self.signature = secrets.token_hex(8)
        """Part of every address of the content host; other signatures are refused there with 403."""
        self.sent_bytes = 0
        """What went out of files, cut answers included."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._sending = 0
        self._xet: dict[str, HubFile] = {}
        self._hub = Server(self, "hub")
        self._content = Server(self, "content")
        self._ports = [self._hub.server_port, self._content.server_port]

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is to be."""
        return f"http://127.0.0.1:{self._ports[0]}{self.prefix}"

    @property
    def content_url(self) -> str:
        """Where redirects lead."""
        return f"http://localhost:{self._ports[1]}"

    def relay(self, through: Callable[[int], int]) -> None:
        """Be reached by the ports that `through` makes of its own."""
        self._ports = [through(port) for port in self._ports]

    def add(self, repository: str, path: str, content: bytes | Path, *, lfs: bool = True, branch: str = "main") -> str:
        """Put a file into a repository, made if need be; the new commit of the branch."""
        return self.repository(repository).change(branch, {path: HubFile(self.file_of(content), lfs)})

    def repository(self, name: str) -> Repository:
        """A repository, made if need be, to gate it or to move its branches."""
        return self.repositories.setdefault(name, Repository(name))

    def replace(self, repository: str, path: str, content: bytes) -> None:
        """Put other bytes in the place of a file, at the same commit and under the digest that was told of it."""
        file = self.file(repository, path)
        other = HubFile(self.file_of(content), file.is_lfs, claimed_sha256=file.sha256)
        found = self.repository(repository)
        commit = found.branches["main"]
        found.commits[commit] = dict(found.commits[commit]) | {path: other}

    def offer_xet(self, repository: str, path: str) -> None:
        """Offer a file by xet too; a new commit."""
        file = self.file(repository, path)
        offered = HubFile(file.content, xet_hash=file.sha256)
        self.repository(repository).change("main", {path: offered})
        self._xet[file.sha256] = offered

    def xet_file(self, xet_hash: str) -> HubFile | None:
        """What xet knows by a hash."""
        return self._xet.get(xet_hash)

    def file(self, repository: str, path: str, revision: str = "main") -> HubFile:
        """A file that is there."""
        found = self.repositories[repository]
        return found.commits[found.resolve(revision) or ""][path]

    def serve(self, name: str, content: bytes | Path) -> str:
        """A file outside any repository; its address. Serving it again replaces it there."""
        self.plain[f"/files/{name}"] = self.file_of(content)
        return f"{self.url}/files/{name}"

    def rename(self, old: str, new: str) -> None:
        """Give a repository another name; the old one leads there."""
        found = self.repositories[new] = self.repositories.pop(old)
        found.name = new
        self.moved[old] = new

    def gate(self, repository: str, kind: str, *readers: str) -> None:
        """Close a repository (`gated` or `private`) to all but who has one of these tokens."""
        found = self.repository(repository)
        found.gate, found.readers = kind, frozenset(readers)
        self.tokens |= set(readers)

    def fault(self, kind: Kind, path: str = "", **fields: object) -> Fault:
        """Have the next request for bytes of a fitting path go wrong."""
        fault = Fault(kind, path, **fields)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def take_fault(self, path: str, *, is_ranged: bool, on_api: bool) -> Fault | None:
        """The fault that a request meets."""
        with self._lock:
            return next((f for f in self.faults if f.meets(path, is_ranged=is_ranged, on_api=on_api)), None)

    @contextmanager
    def sending(self) -> Iterator[bool]:
        """Count a body that is sent; whether it may be."""
        with self._lock:
            self._sending += 1
            allowed = self.at_once is None or self._sending <= self.at_once
        try:
            yield allowed
        finally:
            with self._lock:
                self._sending -= 1

    def count_sent(self, count_bytes: int) -> None:
        """So much more of a file has gone out."""
        with self._lock:
            self.sent_bytes += count_bytes

    def asked(self, host: str | None = None, method: str = "GET", path: str = "") -> list[Request]:
        """Requests so far, by host, method and part of the path."""
        return [r for r in self.requests if host in (None, r.host) and r.method == method and path in r.path]

    @property
    def connections(self) -> int:
        """Connections that were ever opened."""
        return self._hub.accepted + self._content.accepted

    def drop_connections(self) -> None:
        """Cut every connection that is open."""
        for server in (self._hub, self._content):
            server.drop()

    def close(self) -> None:
        """End both servers and every connection."""
        self.closing.set()
        for server in (self._hub, self._content):
            server.end()

    def file_of(self, content: bytes | Path) -> Path:
        """A file with this content, to be served."""
        if isinstance(content, Path):
            return content
        path = self._folder / secrets.token_hex(8)
        path.write_bytes(content)
        return path


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub with nothing in it, until the end of the block; an error in a handler is an error of the test."""
    with tempfile.TemporaryDirectory(prefix="hub-") as folder:
        hub = Hub(Path(folder))
        try:
            yield hub
        finally:
            hub.close()
        assert hub.errors == []
