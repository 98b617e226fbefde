"""The page at `/` and its files. Plain ASGI, behind the guard like everything else."""

import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from orchestrator.api import Context
from orchestrator.errors import PROBLEM_TYPE, Code, SlipstreamError, internal_error
from orchestrator.page.overview import Overview, look
from orchestrator.page.rendering import Templates

LIVE = "/page/live"
_FOLDER = Path(__file__).with_name("static")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Nothing from elsewhere, nothing inline, no form that a browser would send, in nobody's frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_log = logging.getLogger(__name__)


class Page:
    """`/` shows how things stand, or with `is_locked` asks for a key; `/page/live` is what changes, for its script."""

    def __init__(self, context: Context, *, is_locked: bool) -> None:
        self._context = context
        self._is_locked = is_locked
        self._templates = Templates()
        self._files = {f"/page/{path.name}": _file(path) for path in _FOLDER.iterdir() if path.suffix in _TYPES}

    def has(self, path: str) -> bool:
        """Whether this answers requests for a path."""
        return path in ("/", LIVE) or path in self._files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a path that it has."""
        request = Request(scope)
        try:
            response = await self._answer(request)
        except SlipstreamError as e:
            response = _problem(e)
        except Exception as e:
            _log.error("%s %s failed", request.method, request.url.path, exc_info=e)
            response = _problem(internal_error())
        response.headers.update(_HEADERS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if request.method not in ("GET", "HEAD"):
            message = f"{path} does not take {request.method}"
            raise SlipstreamError(Code.METHOD_NOT_ALLOWED, message, headers={"allow": "GET, HEAD"})
        if path in self._files:
            return _sent(self._files[path], request.headers)
        if path == LIVE:
            html = self._templates.live(await look(self._context))
        else:
            overview = Overview(time.time()) if self._is_locked else await look(self._context)
            html = self._templates.page(overview, is_locked=self._is_locked)
        return HTMLResponse(html, headers={"cache-control": "no-store"})


def _problem(error: SlipstreamError) -> Response:
    return JSONResponse(error.problem(), error.status, error.headers, media_type=PROBLEM_TYPE)


def _file(path: Path) -> tuple[bytes, str, str]:
    """Content, media type and ETag."""
    content = path.read_bytes()
    return content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def _sent(file: tuple[bytes, str, str], asked: Mapping[str, str]) -> Response:
    content, media_type, etag = file
    # Kept by the browser and asked for each time: an update of Slipstream is seen at once.
    headers = {"cache-control": "no-cache", "etag": etag}
    if asked.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)
