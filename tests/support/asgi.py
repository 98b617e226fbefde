"""One request to an ASGI application in this process, whose client may leave at any moment."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass
class Call:
    """A request; `run` drives the application. `left.set()` is the client closing its connection."""

    app: ASGIApp
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    more: bool = False
    status: int = 0
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    ended: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: bool = False

    async def run(self) -> "Call":
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in ({"host": "localhost"} | self.headers).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }
        await self.app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": self.more}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.left.is_set():
            return
        if message["type"] == "http.response.start":
            assert not self.status, "a response begins once"
            self.status, self.answer_headers = message["status"], list(message.get("headers", []))
        else:
            assert self.status and not self.ended
            self.chunks.append(message.get("body", b""))
            self.ended = not message.get("more_body", False)

    @property
    def content(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.content)

    def header(self, name: str) -> list[str]:
        return [v.decode() for k, v in self.answer_headers if k == name.encode()]


def post(app: ASGIApp, path: str, body: Any, **headers: str) -> Call:
    """A call with a JSON body, or with the bytes given."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Call(app, "POST", path, raw, headers)
