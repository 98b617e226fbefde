"""Proxies and certificates that the environment names."""

import os
import ssl
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http import connect
from orchestrator.store.http.connect import Broken
from orchestrator.store.http.session import Session
from tests.support.answers import Certificate, scripted
from tests.support.fetching import NAME, made
from tests.support.hub import Hub

CONTENT = made(1000)


def test_a_proxy_of_the_environment_is_used(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pass%40word@127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        proxy.answers["http://far.example/a?b=c"] = (200, {}, b"through")
        assert session.get("http://far.example/a?b=c", {}).read(100) == b"through"
        [(path, headers)] = proxy.asked
    assert path == "http://far.example/a?b=c" and headers["Host"] == "far.example"
    assert headers["Proxy-Authorization"] == "Basic bWU6cGFzc0B3b3Jk"


def test_a_proxy_that_opens_no_tunnel_is_told_apart(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(Broken, match="the proxy answered 501"):
            session.get("https://far.example/a", {})


def test_no_proxy_is_heeded(hub: Hub, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    url = hub.serve(NAME, CONTENT)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert session.get(url, {}).read(len(CONTENT)) == CONTENT


def test_a_proxy_of_another_kind_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(SlipstreamError, match="proxy of the kind 'socks5'"):
        session.get("http://far.example/", {})


def test_a_proxy_without_a_port_that_can_be_asked_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:password@127.0.0.1:port")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(SlipstreamError, match="proxy without a host or port") as caught:
        session.get("http://far.example/", {})
    assert "password" not in str(caught.value.problem())


def test_a_certificate_is_checked_against_the_authority_that_the_environment_names(
    session: Session, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with scripted(certificate) as server:
        address = f"https://127.0.0.1:{server.server_port}/a"
        with pytest.raises(SlipstreamError, match=r"certificate of 127\.0\.0\.1 is not trusted") as caught:
            session.get(address, {})
        assert "SSL_CERT_FILE" in (caught.value.hint or "")
        monkeypatch.setenv("SSL_CERT_FILE", os.fspath(certificate[0]))
        assert session.get(address, {}).read(10) == b"fine"
        server.answers["/a"] = (302, {"Location": "http://127.0.0.1/plain"}, b"")
        with pytest.raises(SlipstreamError, match="redirects from https to http; expected https"):
            session.get(address, {})


def test_an_authority_of_this_machine_is_trusted(
    session: Session, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(connect, "_certificates_of", connect._certificates_of.__wrapped__)
    monkeypatch.setattr(
        ssl.SSLContext, "set_default_verify_paths", lambda context: context.load_verify_locations(certificate[0])
    )
    with scripted(certificate) as server:
        assert session.get(f"https://127.0.0.1:{server.server_port}/a", {}).read(10) == b"fine"


def test_certificates_that_are_not_there_are_told(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(SlipstreamError, match="no certificates can be read where SSL_CERT_FILE") as caught:
        session.get("https://127.0.0.1:1/a", {})
    assert caught.value.code is Code.MISCONFIGURED and str(tmp_path) not in caught.value.message
