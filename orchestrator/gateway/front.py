"""The door of the whole application: every request has an id, and what becomes of one of the data plane is told."""

import re
from collections.abc import Awaitable
from random import getrandbits
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.gateway.account import Account, told_path
from orchestrator.gateway.routes import is_data, is_listed

if TYPE_CHECKING:
    from orchestrator.telemetry.spans import Trace, Tracing

REQUEST_ID = b"x-request-id"
_SANE = re.compile(rb"[\w.~:/+=@-]{1,128}", re.ASCII)
_PASSED_ON = frozenset({b"traceparent", b"tracestate", b"baggage"})


class Front:
    """ASGI middleware in front of everything, so that refusals are told too. `tracing` None: no request has a trace."""

    def __init__(self, app: ASGIApp, tracing: "Tracing | None" = None) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on; its answer gets the header `x-request-id`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        account = Account(request_id, scope["method"], scope["path"])
        header = (REQUEST_ID, request_id.encode())

        # No coroutine of its own: it is called for every chunk.
        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), header]}
            return send(message)

        if not is_data(scope["path"]):
            await self._app(scope, receive, sending)
            return
        scope.setdefault("state", {})["account"] = account
        if self._tracing is not None:
            account.trace = _trace(self._tracing, scope, request_id)
        try:
            await self._app(scope, receive, sending)
        finally:
            account.tell()


def _request_id(scope: Scope) -> str:
    """The client's own if it is one short word, else a new one."""
    given = [value for name, value in scope["headers"] if name == REQUEST_ID]
    if len(given) == 1 and _SANE.fullmatch(given[0]):
        return str(given[0].decode())
    return f"{getrandbits(128):032x}"


def _trace(tracing: "Tracing", scope: Scope, request_id: str) -> "Trace":
    method, path = scope["method"], scope["path"]
    headers = {k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in _PASSED_ON}
    route = path if is_listed(path) else None
    name = " ".join(word for word in (method, route) if word)
    attributes = {
        "http.request.method": method,
        "http.route": route,
        "url.path": told_path(path),
        "url.scheme": scope["scheme"],
        "slipstream.request_id": request_id,
    }
    return tracing.request(name, headers, attributes)
