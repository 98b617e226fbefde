"""Bodies of the control plane are small: a larger one is refused before it is held in memory."""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.errors import PROBLEM_TYPE, SlipstreamError
from orchestrator.gateway.body import read_body

MAX_BODY_BYTES = 256 << 10


class BodyLimit:
    """ASGI middleware: reads the body within the limit, then passes request and body on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413, or let `app` answer. A client that leaves in the middle of its body is not answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await read_body(receive, MAX_BODY_BYTES)
        except SlipstreamError as e:
            await JSONResponse(e.problem(), e.status, e.headers, media_type=PROBLEM_TYPE)(scope, receive, send)
            return
        if body is None:
            return
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)
