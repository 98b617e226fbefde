"""An answer on its way to the client: it knows how far it has got, and so how an error can still be told."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.types import Send

from orchestrator.errors import SlipstreamError
from orchestrator.gateway.account import Account
from orchestrator.gateway.dialects import Dialect, error_body, error_event
from orchestrator.gateway.racing import over

# Proxies in front of us must not hold events back.
STREAM_HEADERS = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}
SSE = b"text/event-stream"
# A client that takes nothing must not hold up the end of its own answer.
_LAST_WORD_SECONDS = 1.0
Headers = Iterable[tuple[bytes, bytes]]
T = TypeVar("T")


class Reply:
    """`send` of one request. `wants_stream` is set once the request has been read; `account` is what is told of it."""

    def __init__(self, send: Send, dialect: Dialect, keep_alive_seconds: float, account: Account) -> None:
        self.send = send
        self.dialect = dialect
        self.account = account
        self.wants_stream = False
        self.has_begun = False
        self.is_stream = False
        self.has_ended = False
        self._keep_alive_seconds = keep_alive_seconds

    async def begin(self, status: int, headers: Headers, *, is_stream: bool = False) -> None:
        """Status and headers; those that an event stream needs are seen to here."""
        headers = list(headers)
        if is_stream:
            headers = [(k, v) for k, v in headers if k not in STREAM_HEADERS] + list(STREAM_HEADERS.items())
        self.has_begun, self.is_stream = True, is_stream
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def end(self, body: bytes = b"") -> None:
        """The last bytes."""
        self.has_ended = True
        await self.send({"type": "http.response.body", "body": body})

    async def json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A whole answer."""
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        sent = [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
        sent += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.begin(status, sent)
        await self.end(body)

    async def fail(self, error: SlipstreamError) -> None:
        """Tell it: as an answer, as an event that ends the stream, or else by leaving the answer unfinished.

        The ASGI server then breaks the connection, so that nobody takes it for whole.
        """
        self.account.error = str(error.code)
        if not self.has_begun:
            await self.json(error_body(error, self.dialect), error.status, error.headers)
        elif self.is_stream and not self.has_ended:
            try:
                async with asyncio.timeout(_LAST_WORD_SECONDS):
                    await self.end(error_event(error, self.dialect))
            except TimeoutError:
                self.has_ended = False

    async def alive_while(
        self,
        work: Coroutine[Any, Any, T],
        why: Callable[[], str],
        undo: Callable[[T], object],
        *,
        may_begin: bool = True,
    ) -> T:
        """`work`; while it lasts, a stream gets comments that say why it waits, so that no proxy gives it up.

        With `may_begin` the first comment also begins the answer: 200, an event stream. `undo` gets a result that
        came too late, because the client had left.
        """
        if not (self.wants_stream and (may_begin or self.has_begun)):
            return await work
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=self._keep_alive_seconds))[0]:
                await self._comment(why())
        except BaseException:
            if await over(task):
                undo(task.result())
            raise
        return task.result()

    async def _comment(self, text: str) -> None:
        if not self.has_begun:
            await self.begin(200, [(b"content-type", SSE)], is_stream=True)
        line = " ".join(text.split())
        await self.send({"type": "http.response.body", "body": f": {line}\n\n".encode(), "more_body": True})
