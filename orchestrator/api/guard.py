"""Who may ask: keys, host names, and web pages of strangers. Plain ASGI, in front of everything."""

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError

_OPEN = frozenset({"/healthz", "/readyz"})
_DATA_PLANE = "/v1/"


class Guard:
    """`/v1` and `/metrics` open to any key, `/api` to admin keys, the probes to everybody.

    Without keys everything is open, so then a web page must not be able to use the address: a request that a
    browser sends for another site (Origin) or for a name that was bent to this machine (Host) is refused.
    """

    def __init__(
        self, app: ASGIApp, admin_keys: Sequence[str], api_keys: Sequence[str], allowed_hosts: Sequence[str]
    ) -> None:
        self._app = app
        self._admin = [k.encode() for k in admin_keys]
        self._any = [k.encode() for k in (*admin_keys, *api_keys)]
        self._hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not in the shape its path has."""
        if scope["type"] == "http":
            path: str = scope["path"]
            try:
                headers: dict[bytes, bytes] = dict(scope["headers"])
                self._check_site(headers)
                if path not in _OPEN:
                    self._check_key(path, headers)
            except SlipstreamError as e:
                await _refusal(path, e)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_site(self, headers: dict[bytes, bytes]) -> None:
        host = _hostname(f"//{headers.get(b'host', b'').decode('latin-1')}")
        if "*" not in self._hosts and host not in self._hosts:
            raise _not_served("Host", host)
        if b"origin" in headers and not self._any:
            origin = _hostname(headers[b"origin"].decode("latin-1"))
            if origin not in self._hosts and not (origin and origin == host):
                raise _not_served("Origin", origin)

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        is_admin_path = not path.startswith(_DATA_PLANE) and path != "/metrics"
        # With inference keys alone the control plane is closed, not open.
        if not self._any:
            return
        given = headers.get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        key = key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not key:
            raise SlipstreamError(Code.UNAUTHORIZED, "a key is needed: send `Authorization: Bearer KEY`")
        # Every key is compared, so that the time tells nothing about which one was close.
        if any([hmac.compare_digest(key, k) for k in (self._admin if is_admin_path else self._any)]):
            return
        if any([hmac.compare_digest(key, k) for k in self._any]):
            raise SlipstreamError(Code.FORBIDDEN, f"this key opens /v1, and {path} needs an admin key")
        raise SlipstreamError(Code.UNAUTHORIZED, "this key is not known here")


def _not_served(header: str, host: str) -> SlipstreamError:
    return SlipstreamError(
        Code.FORBIDDEN,
        f"the {header} {host[:100]!r} is not served here",
        hint="add it to SLIPSTREAM_ALLOWED_HOSTS if it is yours",
    )


def _hostname(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    return f"[{host}]" if ":" in host else host


def _refusal(path: str, error: SlipstreamError) -> JSONResponse:
    if path.startswith(_DATA_PLANE):
        return JSONResponse(error.openai(), error.status, error.headers)
    return JSONResponse(error.problem(), error.status, error.headers, media_type=PROBLEM_TYPE)
