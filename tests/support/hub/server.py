"""The hub over HTTP: which request is for what, and the calls of its API."""

import json
import re
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.hub import xet
from tests.support.hub.files import Files
from tests.support.hub.repositories import HubFile, Repository

if TYPE_CHECKING:
    from tests.support.hub.hub import Hub

_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs|xet-read-token)(?:/([^/]+))?(?:/.*)?)?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(frozen=True)
class Request:
    """A request that came in. `host` is `hub` or `content`; header names are in lower case."""

    host: str
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class Server(ThreadingHTTPServer):
    """One of the hub's two hosts."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub: "Hub", host: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.host = host
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.accepted += 1
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self.hub.errors.append(repr(error))

    def end(self) -> None:
        """Stop serving; cut who is still connected."""
        self.shutdown()
        self._thread.join()
        self.drop()
        self.server_close()

    def drop(self) -> None:
        """Cut every connection that is open."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(Files):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, raw = self.server.hub, urlsplit(self.path).path
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.requests.append(Request(self.server.host, self.command, self.path, headers))
        if self.server.host == "content":
            return self._content(unquote(raw))
        if not raw.startswith(hub.prefix):
            return self._refuse(404, None, "no such page")
        raw = raw.removeprefix(hub.prefix)
        path = unquote(raw)
        if old := next((name for name in hub.moved if f"/{name}/" in f"{raw}/"), None):
            # As the real hub: a redirect without a host.
            self._answer(307, {"Location": self.path.replace(old, hub.moved[old], 1)})
        elif path in hub.plain:
            self._file(path, HubFile(hub.plain[path]), {})
        elif found := _API.fullmatch(raw):
            self._api(*found.groups())
        elif found := _RESOLVE.fullmatch(raw):
            self._resolve(*(unquote(group) for group in found.groups()))
        else:
            self._refuse(404, None, "no such page")

    def _api(self, name: str, what: str | None, revision: str | None) -> None:
        if self._spoiled_api(name) or (repository := self._repository(name, listing=True)) is None:
            return
        if what == "refs":
            branches = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in repository.branches.items()
            ]
            tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in repository.tags.items()]
            return self._json({"branches": branches, "tags": tags, "converts": []})
        commit = repository.resolve(unquote(revision or "main"))
        if commit is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[commit]
        if what == "xet-read-token":
            return self._lend()
        if what == "tree":
            return self._json([file.tree(path) for path, file in files.items()])
        with_blobs = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [file.siblings(path) if with_blobs else {"rfilename": path} for path, file in files.items()]
        self._json(
            {"_id": "0" * 24, "id": name, "modelId": name, "sha": commit, "private": repository.gate == "private",
             "gated": "manual" if repository.gate == "gated" else False, "disabled": False, "downloads": 0,
             "likes": 0, "tags": ["gguf"], "siblings": siblings, "createdAt": "2026-01-01T00:00:00.000Z",
             "lastModified": "2026-01-01T00:00:00.000Z"}
        )  # fmt: skip

    def _lend(self) -> None:
        """A token for the store that xet reads from: hf_xet reads the body, huggingface_hub the headers."""
        host, expiry = self.server.hub.content_url, xet.EXPIRY
        names = {"X-Xet-Cas-Url": host, "X-Xet-Token-Expiration": str(expiry), "X-Xet-Access-Token": xet.TOKEN}
        body = {"casUrl": host, "exp": expiry, "accessToken": xet.TOKEN}
        self._answer(200, names, json.dumps(body).encode())

    def _spoiled_api(self, name: str) -> bool:
        fault = self.server.hub.take_fault(name, is_ranged=False, on_api=True)
        if fault is not None:
            self._answer(fault.status, fault.headers())
        return fault is not None

    def _resolve(self, name: str, revision: str, path: str) -> None:
        if (repository := self._repository(name, listing=False)) is None:
            return
        commit = repository.resolve(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        file = repository.commits[commit].get(path)
        if file is None:
            return self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        about = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.xet_hash:
            about["X-Xet-Hash"] = file.xet_hash
            about["X-Xet-Refresh-Route"] = f"{self.server.hub.url}/api/models/{name}/xet-read-token/{commit}"
        if not file.is_lfs:
            return self._file(path, file, about)
        hub = self.server.hub
        target = f"{hub.content_url}/{name}/{commit}/{path}?X-Signature={hub.signature}"
        about |= {"X-Linked-Size": str(file.size_bytes), "X-Linked-ETag": f'"{file.sha256}"', "Location": target}
        self._answer(302, about)

    def _content(self, path: str) -> None:
        hub = self.server.hub
        if path.startswith(("/v1/", "/v2/", "/xorbs/")):
            return self._xet(path)
        if parse_qs(urlsplit(self.path).query).get("X-Signature") != [hub.signature]:
            return self._answer(403, {})
        owner, name, commit, inner = path.lstrip("/").split("/", 3)
        self._file(inner, hub.repositories[f"{owner}/{name}"].commits[commit][inner], {})

    def _repository(self, name: str, *, listing: bool) -> Repository | None:
        """The repository, if whoever asks may see it; else what the real hub answers."""
        hub = self.server.hub
        repository = hub.repositories.get(name)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        if token is not None and token not in hub.tokens:
            self._refuse(401, None, "Invalid credentials in Authorization header")
            return None
        if repository is None or (repository.gate == "private" and token not in repository.readers):
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        if repository.gate == "gated" and not listing and token not in repository.readers:
            self._refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
            return None
        return repository
