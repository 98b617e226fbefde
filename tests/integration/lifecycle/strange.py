"""A strange server on a port that somebody takes for a llama-server."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.serving import serving


class Strange(http.server.ThreadingHTTPServer):
    """Says that all is well whatever it is asked, or takes connections and says nothing."""

    daemon_threads = True

    def __init__(self, *, answers: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.generations = 0
        self.ending = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Strange

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.server.answers:
            self.server.ending.wait()
        body = json.dumps({"status": "ok", "model_alias": "somebody-else", "total_slots": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.generations += 1
        self.do_GET()


@contextmanager
def strange_server(*, answers: bool) -> Iterator[Strange]:
    """It ends with the block."""
    server = Strange(answers=answers)
    with serving(server):
        try:
            yield server
        finally:
            server.ending.set()
