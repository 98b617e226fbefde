"""Requests that no client library would send, over real sockets: bodies that lie about their size, headers twice."""

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from orchestrator.api.body_limit import MAX_BODY_BYTES
from tests import FAKE_SERVER
from tests.support import eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 10.0
LIMIT_BYTES = 300_000
_CHUNK_BYTES = 10_000
CONTROL, DATA = "/api/swap", "/v1/chat/completions"
LIMITS = {CONTROL: MAX_BODY_BYTES, DATA: LIMIT_BYTES}
PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """Without keys, so that nothing is refused for the want of one."""
    made = Orchestrator(
        tmp_path_factory.mktemp("sockets"),
        FAKE_SERVER,
        {"MAX_REQUEST_BYTES": str(LIMIT_BYTES), "SHUTDOWN_TIMEOUT_SECONDS": "1", "CORS_ORIGINS": PAGE},
    )
    write_script(made.home / "fake.gguf", {})
    made.write_model("fake", made.home / "fake.gguf")
    with running_orchestrator(made):
        yield made
        made.require_alive()


@contextmanager
def connected(house: Orchestrator) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(httpx.URL(house.base_url).port or 0)), DEADLINE_SECONDS) as plug:
        plug.settimeout(DEADLINE_SECONDS)
        yield plug


def told(plug: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    try:
        while piece := plug.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.M)]


def head(method: str, target: str, *headers: str, close: bool = True) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *headers, *(["Connection: close"] if close else [])]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def exchanged(house: Orchestrator, request: bytes) -> list[int]:
    with connected(house) as plug:
        plug.sendall(request)
        return statuses(told(plug))


HOST, JSON = "Host: localhost", "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize("target", [CONTROL, DATA])
def test_a_chunked_body_without_end_is_refused_at_the_limit(house: Orchestrator, target: str) -> None:
    """It never says how long it is: the answer comes although the body goes on."""
    with connected(house) as plug:
        plug.sendall(head("POST", target, HOST, JSON, CHUNKED).removesuffix(b"\r\n"))
        # One byte too many, and nothing after it: a close over unread bytes would take the answer back.
        for size in (*[_CHUNK_BYTES] * (LIMITS[target] // _CHUNK_BYTES), LIMITS[target] % _CHUNK_BYTES + 1):
            plug.sendall(b"\r\n%x\r\n" % size + b" " * size)
        assert statuses(told(plug)) == [413]


@pytest.mark.parametrize("target", [CONTROL, DATA])
def test_a_length_beyond_the_limit_is_refused(house: Orchestrator, target: str) -> None:
    body = b" " * (LIMITS[target] + 1)
    assert exchanged(house, head("POST", target, HOST, JSON, f"Content-Length: {len(body)}") + body) == [413]


@pytest.mark.parametrize("target", [CONTROL, DATA])
def test_bytes_after_the_stated_length_are_no_part_of_the_body(house: Orchestrator, target: str) -> None:
    """The body is `{}`, whatever follows; that is another request, and one that nobody understands."""
    request = head("POST", target, HOST, JSON, "Content-Length: 2", close=False) + b"{}" + b" x" * 1000 + b"\r\n\r\n"
    assert exchanged(house, request)[0] == 400


@pytest.mark.parametrize("target", [CONTROL, DATA])
def test_a_body_that_is_shorter_than_stated_is_not_taken(house: Orchestrator, target: str) -> None:
    with connected(house) as plug:
        plug.sendall(head("POST", target, HOST, JSON, "Content-Length: 100") + b'{"start": "fake", "model": "fake"}')
        plug.shutdown(socket.SHUT_WR)
        assert statuses(told(plug)) in ([], [400])
    assert house.view("fake")["state"] == "stopped"


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 2", "Content-Length: 40"),
        ("Content-Length: -2",),
        ("Content-Length: 2x",),
        ("Content-Length: 4", CHUNKED),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
    ],
)
def test_a_length_of_two_minds_is_never_two_requests(house: Orchestrator, headers: tuple[str, ...]) -> None:
    """A proxy in front may have seen one request where we would see two."""
    smuggled = head("POST", "/api/servers/fake/start", HOST, "Content-Length: 0")
    body = b"0\r\n\r\n" + smuggled
    found = exchanged(house, head("POST", CONTROL, HOST, JSON, *headers) + body)
    assert len(found) <= 1 and (not found or found[0] == 400), found
    assert house.view("fake")["state"] == "stopped"


@pytest.mark.parametrize(
    "header", ["Host: localhost", "Origin: http://localhost", "Authorization: Bearer a", "X-Api-Key: a"]
)
def test_a_header_that_decides_must_be_there_once(house: Orchestrator, header: str) -> None:
    name = header.partition(":")[0]
    own = () if name == "Host" else (HOST,)
    assert exchanged(house, head("GET", "/api/servers", *own, header)) == [200]
    assert exchanged(house, head("GET", "/api/servers", *own, header, f"{name}: evil")) == [400]
    assert exchanged(house, head("GET", "/api/servers", *own, f"{name}: evil", header)) == [400]


def test_a_host_must_be_named_and_is_not_taken_from_the_target(house: Orchestrator) -> None:
    assert exchanged(house, head("GET", "/api/servers"))[0] in (400, 403)
    for target in ("http://localhost/api/servers", "//localhost/api/servers"):
        assert exchanged(house, head("GET", target, "Host: evil.example"))[0] == 403


def test_there_are_no_websockets(house: Orchestrator) -> None:
    wish = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    for target in ("/api/servers", "/v1/models", "/"):
        with connected(house) as plug:
            plug.sendall(head("GET", target, HOST, *wish, key, close=False))
            answer = plug.recv(65536)
        assert b"101 Switching" not in answer and statuses(answer), answer


def test_a_named_page_may_use_the_data_plane_alone(house: Orchestrator) -> None:
    wish = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    granted = house.http.options(DATA, headers=wish)
    assert (granted.status_code, granted.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in granted.headers["access-control-allow-headers"]
    answered = house.http.post(DATA, headers={"origin": PAGE}, json={"model": "nobody", "messages": []})
    assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (404, PAGE)
    for path, origin in ((CONTROL, PAGE), (DATA, "https://evil.example"), (DATA, f"{PAGE}.evil.example")):
        for response in (
            house.http.options(path, headers=wish | {"origin": origin}),
            house.http.post(path, headers={"origin": origin}, json={"start": "fake", "model": "fake"}),
        ):
            assert response.status_code == 403, (path, origin)
            assert not [name for name in response.headers if name.startswith("access-control-")]
    assert house.view("fake")["state"] == "stopped"


def test_the_audit_log_survives_a_kill(tmp_path: Path) -> None:
    """A call that was under way is there without a status; the earlier ones are as they were."""
    gate = tmp_path / "gate"
    write_script(tmp_path / "fake.gguf", {"load_gate": str(gate)})
    house = Orchestrator(tmp_path / "home", FAKE_SERVER, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    house.write_model("fake", tmp_path / "fake.gguf")
    with running_orchestrator(house):
        assert house.http.post("/api/servers/nobody/start").status_code == 404
        with connected(house) as plug:
            plug.sendall(head("POST", "/api/servers/fake/start", HOST, "Content-Length: 0"))
            eventually(lambda: house.view("fake")["state"] == "loading", "it loads")
            house.send(signal.SIGKILL)
            house.wait()
        house.start()
        entries = house.http.get("/api/audit").raise_for_status().json()["entries"]
        found = [(e["path"], e["status"], e["milliseconds"] is None) for e in entries]
        assert found == [("/api/servers/fake/start", None, True), ("/api/servers/nobody/start", 404, False)]
