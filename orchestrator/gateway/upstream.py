"""From a server's answer to the client, byte for byte."""

import asyncio
import json

import httpx
from starlette.types import Scope, Send

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers import Server

_CONNECT_TIMEOUT_SECONDS = 5.0
# Hop-by-hop headers (RFC 9110, 7.6.1) and what only the server's own side may say.
_NOT_PASSED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date", b"upgrade"})
_NOT_PASSED_PREFIX = b"access-control-"
_SSE = b"text/event-stream"
_STREAM_HEADERS = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}


class NotReached(Exception):
    """The server took no connection: nothing of the request has reached it, so it may be sent again."""


class Upstream:
    """Passes requests to servers through one pooled client."""

    def __init__(self, client: httpx.AsyncClient, timeout_seconds: float) -> None:
        self._client = client
        # `read` is the longest silence, not the longest answer: it starts anew with every chunk.
        self._timeout = httpx.Timeout(timeout_seconds, connect=_CONNECT_TIMEOUT_SECONDS)

    async def forward(self, scope: Scope, server: Server, body: bytes, send: Send) -> str:
        """Send `body` to the server, stream its answer; the outcome for the counter.

        Raises NotReached or SlipstreamError before the first byte. After it, a broken answer ends with an error
        event in an event stream (and no `[DONE]`), and with a broken connection elsewhere: never as if whole.
        """
        child = server.child
        if child is None or child.is_dead:
            raise NotReached
        request = self._client.build_request(
            "POST",
            child.url + scope["path"],
            content=body,
            headers={
                "authorization": child.authorization,
                "content-type": "application/json",
                "accept-encoding": "identity",
            },
            timeout=self._timeout,
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ConnectError as e:
            raise NotReached from e
        except httpx.TimeoutException as e:
            raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"the server of {server.model!r} did not answer") from e
        except httpx.HTTPError as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, _broke(server)) from e
        try:
            return await _relay(response, server, send)
        finally:
            await response.aclose()


async def _relay(response: httpx.Response, server: Server, send: Send) -> str:
    headers = [
        (k.lower(), v)
        for k, v in response.headers.raw
        if k.lower() not in _NOT_PASSED and not k.lower().startswith(_NOT_PASSED_PREFIX)
    ]
    is_stream = response.headers.get("content-type", "").encode().startswith(_SSE)
    if is_stream:
        # Proxies in front of us must not hold events back.
        headers = [(k, v) for k, v in headers if k not in _STREAM_HEADERS] + list(_STREAM_HEADERS.items())
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    try:
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except asyncio.CancelledError:
        # The client has left, which makes this a no-op, or we shut down.
        if is_stream:
            await _end_stream(SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator is shutting down"), send)
        raise
    except httpx.HTTPError as e:
        error = SlipstreamError(Code.UPSTREAM_FAILED, _broke(server))
        if isinstance(e, httpx.TimeoutException):
            error = SlipstreamError(Code.UPSTREAM_TIMEOUT, f"the server of {server.model!r} went silent")
        if not is_stream:
            raise error from e
        await _end_stream(error, send)
        return "server_error"
    await send({"type": "http.response.body", "body": b""})
    if response.status_code >= 500:
        return "server_error"
    return "client_error" if response.status_code >= 400 else "ok"


async def _end_stream(error: SlipstreamError, send: Send) -> None:
    # The blank line ends whatever event was cut in half.
    event = f"\n\ndata: {json.dumps(error.openai())}\n\n".encode()
    await send({"type": "http.response.body", "body": event})


def _broke(server: Server) -> str:
    reason = server.failure.message if server.failure else "the connection to it broke"
    return f"the server of {server.model!r} failed during the answer: {reason}"
