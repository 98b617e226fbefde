"""Exporters beside ours: a real node exporter, and pages of those that need hardware that is not here."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.polling import eventually
from tests.support.serving import serving

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')


def node_exporter_program() -> str | None:
    """Debian's prometheus-node-exporter; None where the package of that name is missing."""
    return shutil.which("prometheus-node-exporter")


@contextmanager
def running_node_exporter(program: str, collectors: Sequence[str], log: Path) -> Iterator[str]:
    """The node exporter with these flags on a free port; `host:port`."""
    with log.open("wb") as sink:
        argv = [program, *collectors, "--web.listen-address=127.0.0.1:0"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)

    def address() -> str | None:
        text = log.read_text(errors="replace")
        if process.poll() is not None:
            raise RuntimeError(f"the node exporter ended by itself; its log:\n{text[-2000:]}")
        found = _LISTENING.search(text)
        return found[1] if found else None

    try:
        yield eventually(address, "the node exporter listens", _START_SECONDS)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)


@contextmanager
def running_page(page: Callable[[], str]) -> Iterator[str]:
    """A server that tells this page of metrics to whoever asks; `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"127.0.0.1:{server.server_port}"
