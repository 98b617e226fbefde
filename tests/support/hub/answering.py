"""How an answer of the hub is put on the line."""

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.hub.server import Server


class Answering(BaseHTTPRequestHandler):
    """Short answers, errors as the hub has them, and heads of long ones."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        pass

    def _json(self, value: Any) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _refuse(self, status: int, code: str | None, message: str, about: dict[str, str] | None = None) -> None:
        """An error as the hub has them: what it is, in headers."""
        headers = {"X-Error-Message": message, "Content-Type": "application/json"} | (about or {})
        body = json.dumps({"error": message}).encode()
        self._answer(status, headers | ({"X-Error-Code": code} if code else {}), body)

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self._head(status, headers | {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
