"""Who may ask: keys, host names, and web pages of strangers. Plain ASGI, in front of everything."""

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.api.keys import Caller, Keys
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError
from orchestrator.gateway import is_data
from orchestrator.gateway.dialects import error_body
from orchestrator.gateway.routes import dialect_of

# The page holds no data where keys are set; what its script asks for is behind them.
_PAGE = ("/", "/page/page.css", "/page/page.js", "/page/asking.js", "/page/chat.js", "/page/morph.js", "/page/icon.svg")
_OPEN = frozenset({"/healthz", "/readyz", *_PAGE})
# What is decided by must be there once: of two, a proxy in front may have looked at the other one.
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"x-api-key"})
_PREFLIGHT_SECONDS = 600
_POLICY_VIOLATION = 1008
OnRefusal = Callable[[Scope, str, int], None]


class Guard:
    """The data plane and `/metrics` open to any key, everything else to admin keys, probes and the page to everybody.

    Without keys everything is open, so then a web page must not be able to use the address: a request that a
    browser sends for another site (Origin) or for a name that was bent to this machine (Host) is refused. Pages of
    `cors_origins` may use the data plane, with a key where there are keys. `on_refusal` hears of each refused call
    of the control plane: its scope, the label of its key, and the status.
    """

    def __init__(
        self,
        app: ASGIApp,
        admin_keys: Sequence[str],
        api_keys: Sequence[str],
        allowed_hosts: Sequence[str],
        cors_origins: Sequence[str] = (),
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self._app = app
        self._keys = Keys(admin_keys, api_keys)
        self._hosts = frozenset(allowed_hosts)
        self._origins = frozenset(cors_origins)
        # Without keys this would let every page of the web in.
        self._any_origin = "*" in cors_origins and not self._keys.is_empty
        self._on_refusal = on_refusal
        self._cors = CORSMiddleware(
            self._with_key,
            allow_origins=tuple(cors_origins),
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("retry-after", "x-request-id"),
            allow_private_network=True,
            max_age=_PREFLIGHT_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not in the shape its path has."""
        if scope["type"] == "websocket":
            # There is none, and a handshake carries no key.
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            try:
                is_of_named_page = self._check_site(scope)
            except SlipstreamError as e:
                await self._refuse(e, Caller("none"), scope, receive, send)
                return
            await (self._cors if is_of_named_page else self._with_key)(scope, receive, send)

    async def _with_key(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        caller = self._keys.caller(dict(scope["headers"]))
        try:
            if path not in _OPEN:
                self._keys.check(caller, path, is_admin_path=not is_data(path) and path != "/metrics")
        except SlipstreamError as e:
            await self._refuse(e, caller, scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = caller.label
        await self._app(scope, receive, send)

    def _check_site(self, scope: Scope) -> bool:
        """Whether it comes from a page that may use the data plane; SlipstreamError forbidden for a stranger's."""
        headers = _headers(scope)
        host = _hostname(f"//{headers.get(b'host', b'').decode('latin-1')}")
        if "*" not in self._hosts and host not in self._hosts:
            raise _not_served("Host", host)
        if b"origin" not in headers:
            return False
        origin = headers[b"origin"].decode("latin-1")
        if is_data(scope["path"]) and (origin in self._origins or self._any_origin):
            return True
        name = _hostname(origin)
        if self._keys.is_empty and name not in self._hosts and not (name and name == host):
            raise _not_served("Origin", name)
        return False

    async def _refuse(self, error: SlipstreamError, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if self._on_refusal is not None and not is_data(path) and path not in _OPEN:
            self._on_refusal(scope, caller.label, error.status)
        await _refusal(path, error)(scope, receive, send)


def _headers(scope: Scope) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in _SINGLE:
            raise SlipstreamError(Code.INVALID_REQUEST, f"the header {name.decode()} is there twice, expected once")
        headers[name] = value
    return headers


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
    if is_data(path):
        return JSONResponse(error_body(error, dialect_of(path)), error.status, error.headers)
    return JSONResponse(error.problem(), error.status, error.headers, media_type=PROBLEM_TYPE)
