"""A server that answers what it was told to, by TLS too."""

import http.server
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import serving

Certificate = tuple[Path, Path]


class _Script(http.server.BaseHTTPRequestHandler):
    """Answers as the server's `answers` say, one a path; keeps what it was asked."""

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, dict(self.headers.items())))
        status, headers, body = server.answers.get(self.path, (200, {}, b"fine"))
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def scripted(certificate: Certificate | None = None) -> Iterator[Any]:
    """A server with `answers` and `asked`, by TLS if it has a certificate."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Script)
    server.asked, server.answers, server.daemon_threads = [], {}, True
    server.handle_error = lambda *args: None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server


def make_certificate(folder: Path) -> Certificate:
    """Certificate of an authority that nobody knows, and its key, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    made_files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1",
         "-out", made_files[0], "-keyout", made_files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return made_files
