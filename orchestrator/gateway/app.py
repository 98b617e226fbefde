"""The gateway: a plain ASGI application that finds the model's server and passes bytes on.

The request is parsed once; no chunk of a response is ever parsed.
"""

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from orchestrator.errors import Code, SlipstreamError, internal_error
from orchestrator.gateway.account import account_of
from orchestrator.gateway.answering import Answering
from orchestrator.gateway.asking import read_ask
from orchestrator.gateway.body import read_body
from orchestrator.gateway.models import models_answer
from orchestrator.gateway.racing import unless
from orchestrator.gateway.reply import Reply
from orchestrator.gateway.routes import ROUTES, dialect_of, listed_model
from orchestrator.servers import Manager, shutting_down
from orchestrator.telemetry import Requests

_log = logging.getLogger(__name__)


class Gateway:
    """ASGI application of the data plane. `close` it at the end."""

    def __init__(
        self,
        manager: Manager,
        requests: Requests,
        max_request_bytes: int,
        upstream_timeout_seconds: float,
        keep_alive_seconds: float,
    ) -> None:
        self._manager = manager
        self._requests = requests
        self._max_request_bytes = max_request_bytes
        self._keep_alive_seconds = keep_alive_seconds
        self._answering = Answering(manager, upstream_timeout_seconds)

    async def close(self) -> None:
        """Close its connections."""
        await self._answering.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error has the shape of the route's dialect."""
        path = scope["path"]
        reply = Reply(send, dialect_of(path), self._keep_alive_seconds, account_of(scope))
        try:
            if path in ROUTES:
                await self._infer(scope, receive, reply)
            elif listed_model(path) is not None:
                _require_method(scope, "GET")
                await reply.json(await models_answer(self._manager, path))
            else:
                known = ", ".join(sorted(p for p in ROUTES if p.startswith("/v1/")))
                raise SlipstreamError(Code.NOT_FOUND, f"there is no {path[:200]!r} here; there are {known}")
        except SlipstreamError as e:
            await reply.fail(e)
        except asyncio.CancelledError:
            # The ASGI server gives up on answers when its shutdown takes too long.
            if reply.has_begun:
                await reply.fail(shutting_down())
            raise
        except Exception:
            _log.exception("%s %s failed", scope["method"], path)
            await reply.fail(internal_error())

    async def _infer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        _require_method(scope, "POST")
        raw = await read_body(receive, self._max_request_bytes)
        if raw is None:
            return
        ask = await read_ask(self._manager, scope, raw)
        reply.wants_stream = ask.wants_stream
        account = reply.account
        account.asks(ask)
        account.outcome = "server_error"
        self._requests.began(ask.spec.name)
        try:
            # A client that leaves cancels the work for it at once, which closes the upstream connection.
            account.outcome = await unless(self._answering.answer(ask, reply), _gone(receive, reply)) or "cancelled"
        except SlipstreamError as e:
            account.outcome = "client_error" if e.status < 500 else "server_error"
            raise
        except asyncio.CancelledError:
            account.outcome = "cancelled"
            raise
        finally:
            self._requests.ended(ask.spec.name, account.outcome, account.measured())


async def _gone(receive: Receive, reply: Reply) -> None:
    """Until the client has left before it had its whole answer. The ASGI server says `disconnect` after one too."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if reply.has_ended:
        await asyncio.Event().wait()


def _require_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        message = f"{scope['path']} takes {method}, got {scope['method']}"
        raise SlipstreamError(Code.METHOD_NOT_ALLOWED, message, headers={"allow": method})
