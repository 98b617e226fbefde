"""A real HTTP server that gives the answers a test wrote down, and keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.serving import serving

DEADLINE_SECONDS = 20.0
PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """A response: `body` as JSON, or `text` as it is. `gate` is awaited before it, `between` before its last piece."""

    body: Any = None
    status: int = 200
    kind: str = "application/json"
    text: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None
    between: threading.Event | None = None
    declared_bytes: int | None = None

    def pieces(self) -> list[bytes]:
        raw = (json.dumps(self.body) if self.text is None else self.text).encode()
        if self.between is None:
            return [raw]
        first, _, rest = raw.partition(b"\n\n")
        return [first + b"\n\n", rest]


def problem(code: str, detail: str, status: int, **members: Any) -> Answer:
    """An error of the control plane (RFC 9457)."""
    return Answer({"type": f"urn:{code}", "code": code, "detail": detail, "status": status} | members, status, PROBLEM)


def events(*datas: Any, name: str | None = None) -> str:
    """Server-sent events; what is no string is sent as JSON."""
    head = f"event: {name}\n" if name else ""
    return "".join(f"{head}data: {d if isinstance(d, str) else json.dumps(d)}\n\n" for d in datas)


class ApiStub:
    """`routes["GET /api/models"]` is an Answer, or a function of the request that makes one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.routes: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self.hung_up = threading.Event()

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        route = self.routes.get(f"{asked.method} {asked.path}")
        if route is None:
            return problem("not_found", f"no route {asked.method} {asked.path}", 404)
        return route(asked) if callable(route) else route

    def bodies(self, path: str) -> list[Any]:
        return [asked.body for asked in self.asked if asked.path == path]


@contextmanager
def running_stub() -> Iterator[ApiStub]:
    """A stub on a free port for the length of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            url = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            body = json.loads(raw) if raw else None
            asked = Asked(self.command, url.path, query, {k.lower(): v for k, v in self.headers.items()}, body)
            self.send(stub.answer(asked))

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def send(self, answer: Answer) -> None:
            if answer.gate is not None:
                answer.gate.wait(DEADLINE_SECONDS)
            self.send_response(answer.status)
            self.send_header("content-type", answer.kind)
            if answer.declared_bytes is not None:
                self.send_header("content-length", str(answer.declared_bytes))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for i, piece in enumerate(answer.pieces()):
                    if i:
                        self.wait_or_hang_up(answer.between)
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                stub.hung_up.set()

        def wait_or_hang_up(self, event: threading.Event | None) -> None:
            """Wait for the test; a client that leaves meanwhile is noticed."""
            self.connection.settimeout(0.02)
            while event is not None and not event.is_set():
                try:
                    if self.connection.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    continue

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub = ApiStub(server.server_port)
    with serving(server):
        yield stub


def server_view(model: str = "toy", state: str = "ready", **fields: Any) -> dict[str, Any]:
    """A server as the API shows it."""
    base = {"model": model, "state": state, "desired": "running", "flags": {}, "since": 1.0}
    return base | ({"pid": 7, "spec_type": "draft-mtp", "start_seconds": 2.5} if state == "ready" else {}) | fields


def chunk(content: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a streamed chat completion."""
    delta = {} if content is None else {"content": content}
    return {"object": "chat.completion.chunk", "choices": [{"delta": delta, "finish_reason": finish}]} | fields


def chat_answer(*chunks: Any, **options: Any) -> Answer:
    """A whole stream, `[DONE]` included."""
    return Answer(text=events(*chunks, "[DONE]"), kind="text/event-stream", **options)
