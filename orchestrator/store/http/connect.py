"""One connection to an origin: by TLS or not, straight or through the proxy that the environment names."""

import base64
import http.client
import os
import re
import socket
import ssl
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import port_of, split
from orchestrator.store.http.limits import Limits

# How http.client tells that a proxy did not open a tunnel; nothing but text tells it apart.
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")


class Broken(Exception):
    """The connection failed; the same request may work again. `str()` says how, and names no address."""


@dataclass(eq=False)
class Line:
    """An open connection, and what a proxy wants to see in every request on it."""

    connection: http.client.HTTPConnection
    prefix: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Close it."""
        self.connection.close()

    def shut(self) -> None:
        """From another thread: end whatever waits on it."""
        with suppress(OSError, AttributeError):
            self.connection.sock.shutdown(socket.SHUT_RDWR)


def open_line(url: str, limits: Limits) -> Line:
    """Connect to the origin of `url`. Raises Broken, or SlipstreamError for what no second try can mend."""
    parts = urlsplit(url)
    host, port, is_tls = parts.hostname or "", port_of(parts), parts.scheme == "https"
    proxy = _proxy(parts.scheme, f"{host}:{port}")
    at = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
    line = Line(
        http.client.HTTPSConnection(*at, timeout=limits.connect_seconds, context=_certificates())
        if is_tls
        else http.client.HTTPConnection(*at, timeout=limits.connect_seconds)
    )
    if proxy:
        shown = _proxy_headers(proxy)
        if is_tls:
            line.connection.set_tunnel(host, port, headers=shown)
        else:
            line.prefix, line.headers = f"http://{parts.netloc.rpartition('@')[2]}", shown
    try:
        line.connection.connect()
        line.connection.sock.settimeout(limits.stall_seconds)
    except ssl.SSLCertVerificationError as e:
        line.close()
        raise untrusted(host, e) from e
    except (OSError, http.client.HTTPException) as e:
        line.close()
        raise Broken(reason(e)) from e
    return line


def check_environment(url: str) -> None:
    """SlipstreamError for settings of proxy and certificates with which no connection to `url` can come about."""
    parts = urlsplit(url)
    _proxy(parts.scheme, f"{parts.hostname}:{port_of(parts)}")
    if parts.scheme == "https":
        _certificates()


def reason(error: Exception) -> str:
    """What went wrong with a connection, in words that hold no address."""
    match error:
        case TimeoutError():
            return "no byte came in time"
        case http.client.RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return "the connection was cut"
        case http.client.IncompleteRead():
            return "the connection was cut before the end"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror():
            return "its name has no address"
        case ssl.SSLError():
            return f"TLS failed: {error.reason}"
        case OSError() if refused := _TUNNEL.match(str(error)):
            return f"the proxy answered {refused[1]}"
        case OSError():
            return error.strerror or "the connection failed"
        case _:
            return f"no HTTP came back ({type(error).__name__})"


def _certificates() -> ssl.SSLContext:
    """SSL_CERT_FILE or SSL_CERT_DIR, else the authorities of httpx and those of this machine."""
    try:
        return _certificates_of(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    except OSError as e:
        raise SlipstreamError(
            Code.MISCONFIGURED, f"no certificates can be read where SSL_CERT_FILE or SSL_CERT_DIR point: {e.strerror}"
        ) from e


@lru_cache(maxsize=4)
def _certificates_of(file: str | None, folder: str | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    if not file and not folder:
        # The hub's library trusts the authorities of the machine, to which a company may have added its own.
        context.load_default_certs()
    return context


def _proxy(scheme: str, host: str) -> SplitResult | None:
    """What HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say about a host."""
    named = urllib.request.getproxies_environment()
    address = named.get(scheme) or named.get("all")
    if not address or urllib.request.proxy_bypass(host, named):
        return None
    parts = split(address if "://" in address else f"http://{address}")
    if parts is None or parts.scheme != "http":
        kind = f"a proxy of the kind {parts.scheme!r}" if parts else "a proxy without a host or port that can be asked"
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"the environment names {kind} for {scheme} addresses; expected http://host:port",
            hint="set HTTP_PROXY, HTTPS_PROXY or ALL_PROXY to an HTTP proxy, or NO_PROXY for this host",
        )
    return parts


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def untrusted(host: str, error: ssl.SSLCertVerificationError) -> SlipstreamError:
    """What a certificate of `host` that cannot be verified becomes: no second try mends it."""
    return SlipstreamError(
        Code.SOURCE_FAILED,
        f"the certificate of {host} is not trusted: {error.verify_message}",
        hint="if your network has an authority of its own, name its certificate with SSL_CERT_FILE",
    )
