"""Connections, redirects, and who sees the token."""

import threading

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.connect import Broken
from orchestrator.store.http.session import Answer, Session
from tests.support import eventually
from tests.support.answers import scripted
from tests.support.fetching import NAME, QUICK, REPOSITORY, made
from tests.support.hub import Hub, Kind

CONTENT = made(300_000)
TOKEN = "hf_secretsecret"


@pytest.fixture
def url(hub: Hub) -> str:
    hub.add(REPOSITORY, NAME, CONTENT)
    return f"{hub.url}/{REPOSITORY}/resolve/main/{NAME}"


def test_a_redirect_is_followed_and_connections_are_kept(hub: Hub, url: str, session: Session) -> None:
    for _ in range(3):
        assert session.get(url, {}).read(len(CONTENT)) == CONTENT
    assert [r.host for r in hub.requests] == ["hub", "content"] * 3
    assert hub.connections == 2


def test_a_body_that_is_left_closes_its_connection(hub: Hub, url: str, session: Session) -> None:
    assert session.get(url, {}).read(10) == CONTENT[:10]
    assert session.get(url, {}).read(len(CONTENT)) == CONTENT
    assert hub.connections == 3


def test_a_kept_connection_that_was_closed_is_opened_again(hub: Hub, url: str, session: Session) -> None:
    assert session.get(url, {}).read(len(CONTENT)) == CONTENT
    hub.drop_connections()
    assert session.get(url, {}).read(len(CONTENT)) == CONTENT


def test_the_token_stays_with_its_host(hub: Hub, url: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens.add(TOKEN)
    session.get(url, {"Range": "bytes=0-9"}, token_host=hub.url)
    at_hub, at_content = hub.requests
    assert at_hub.headers["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in at_content.headers
    assert at_content.range == "bytes=0-9"


def test_nobody_sees_the_token_unasked(hub: Hub, url: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    session.get(url, {})
    session.get(url, {}, token_host=hub.content_url.replace("localhost", "127.0.0.1"))
    assert not any(TOKEN in str(request) for request in hub.requests)


def test_a_cut_gives_what_came_before_it(hub: Hub, url: str, session: Session) -> None:
    hub.fault(Kind.CUT, after_bytes=100_000)
    answer, got = session.get(url, {}), bytearray()
    buffer = memoryview(bytearray(1 << 20))
    with pytest.raises(Broken, match="cut"):
        while count := answer.read_into(buffer):
            got += buffer[:count]
    assert got == CONTENT[:100_000]


def test_silence_is_a_broken_line_and_what_came_is_given(hub: Hub, url: str, session: Session) -> None:
    hub.fault(Kind.STALL, after_bytes=70_000)
    answer, got = session.get(url, {}), 0
    buffer = memoryview(bytearray(1 << 20))
    with pytest.raises(Broken, match="no byte came in time"):
        while count := answer.read_into(buffer):
            got += count
    assert got == 70_000


def test_another_thread_can_end_a_wait(hub: Hub, url: str) -> None:
    patient = Session(QUICK.__class__(stall_seconds=60.0))
    hub.fault(Kind.STALL, after_bytes=0)
    answer = patient.get(url, {})
    ended: list[str] = []

    def read() -> None:
        try:
            answer.read(10)
        except Broken as e:
            ended.append(str(e))

    thread = threading.Thread(target=read)
    thread.start()
    patient.abort()
    thread.join(5)
    assert not thread.is_alive() and ended
    patient.close()


def test_a_port_where_nobody_listens(session: Session) -> None:
    with pytest.raises(Broken, match="connection refused"):
        session.get("http://127.0.0.1:1/x", {})


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:port/x", "http://127.0.0.1:99999/x", "http://127.0.0.1:0/x", "http://a..b/x",
        f"http://{'a' * 64}.org/x", "http:///x", "http://[::1/x",
    ],
)  # fmt: skip
def test_an_address_that_nobody_can_have(session: Session, url: str) -> None:
    with pytest.raises(SlipstreamError, match="no host, or no port, that can be asked"):
        session.get(url, {})


def test_redirects_come_to_an_end(session: Session) -> None:
    with scripted() as server:
        server.answers["/a"] = (302, {"Location": "/b"}, b"")
        server.answers["/b"] = (307, {"Location": "a"}, b"")
        with pytest.raises(SlipstreamError, match=r"127\.0\.0\.1 redirects in a circle"):
            session.get(f"http://127.0.0.1:{server.server_port}/a", {})


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "//127.0.0.1:port/x", "http://[::1", "//a..b/x"]
)
def test_redirects_stay_on_http(session: Session, target: str) -> None:
    with scripted() as server:
        server.answers["/a"] = (302, {"Location": target}, b"")
        with pytest.raises(SlipstreamError) as caught:
            session.get(f"http://127.0.0.1:{server.server_port}/a", {})
    assert caught.value.code is Code.SOURCE_FAILED


def test_a_redirect_may_be_no_ascii(session: Session) -> None:
    with scripted() as server:
        # The client and the server of the standard library take header bytes for Latin-1.
        server.answers["/a"] = (302, {"Location": "/m\u00fcller x".encode().decode("latin-1")}, b"")
        server.answers["/m%C3%BCller%20x"] = (200, {}, b"found")
        assert session.get(f"http://127.0.0.1:{server.server_port}/a", {}).read(10) == b"found"


def test_an_answer_of_unknown_length_is_read_to_its_end(hub: Hub, url: str, session: Session) -> None:
    hub.fault(Kind.NO_LENGTH)
    answer: Answer = session.get(url, {})
    assert answer.read(len(CONTENT) + 1) == CONTENT
    assert session.get(url, {}).read(5) == CONTENT[:5]
    eventually(lambda: hub.connections == 2, "the connection is kept after chunks")
