"""To a server and back: pooled connections, and its answers byte for byte."""

import logging
from http import HTTPStatus
from weakref import WeakKeyDictionary

import aiohttp

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway.asking import Ask
from orchestrator.gateway.dialects import Dialect, refused_by, translated
from orchestrator.gateway.reply import SSE, Reply
from orchestrator.servers import Instance, Lease

_CONNECT_TIMEOUT_SECONDS = 5.0
# Shorter than llama-server's own 5 s: it must never close a connection that we are about to use.
_KEEP_ALIVE_SECONDS = 2.0
_ERASE_TIMEOUT_SECONDS = 5.0
# What is read ahead of a client that is slow: the socket's buffer then fills, and llama-server waits.
_READ_AHEAD_BYTES = 32 << 10
_LONGEST_ERROR_BYTES = 64 << 10
# Hop-by-hop headers (RFC 9110, 7.6.1) and what only the server's own side may say.
_NOT_PASSED = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date", b"upgrade", b"x-request-id"}
)
_NOT_PASSED_PREFIX = b"access-control-"
_log = logging.getLogger(__name__)


class NotReached(Exception):
    """The server took no connection: nothing of the request has reached it, so it may be sent again."""


class Upstream:
    """The clients of servers, one for each. `timeout_seconds` is the longest silence, not the longest answer."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._sessions: WeakKeyDictionary[Instance, aiohttp.ClientSession] = WeakKeyDictionary()

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()

    def _session(self, instance: Instance) -> aiohttp.ClientSession:
        session = self._sessions.get(instance)
        if session is None:
            session = self._sessions[instance] = self._made()
            # A connection that is kept open holds up llama-server's end by a tenth of a second.
            instance.before_end(session.close)
        return session

    def _made(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_SECONDS, sock_read=self._timeout_seconds
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("user-agent", "accept", "accept-encoding"),
            read_bufsize=_READ_AHEAD_BYTES,
        )

    async def send(self, lease: Lease, ask: Ask, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send a request, with `headers` of ours; its answer as soon as it begins, to be closed by the caller.

        NotReached when nothing has reached the server, SlipstreamError when it breaks or stays silent.
        """
        if lease.is_dead:
            raise NotReached
        model = lease.server.model
        headers = headers | {"content-type": ask.content_type, "accept-encoding": "identity"}
        if ask.wants_stream:
            # llama-server closes the connection after each stream and does not say so (tools/server/server-http.cpp:
            # its chunked provider returns false at the end): the next request on it would be lost.
            headers["connection"] = "close"
        try:
            return await self._post(lease, ask.route.upstream, headers, body)
        except aiohttp.ClientConnectorError as e:
            raise NotReached from e
        except TimeoutError as e:
            raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"the server of {model!r} did not answer") from e
        except aiohttp.ClientError as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, _broke(lease)) from e

    async def relay(self, response: aiohttp.ClientResponse, lease: Lease, reply: Reply) -> str:
        """Pass an answer on; the outcome for the counter. SlipstreamError when it breaks off."""
        if response.status >= HTTPStatus.BAD_REQUEST and (reply.has_begun or reply.dialect is not Dialect.OPENAI):
            return await self._relay_error(response, lease, reply)
        is_stream = response.content_type.encode() == SSE
        if not reply.has_begun:
            await reply.begin(response.status, _passed(response), is_stream=is_stream)
        elif not is_stream:
            raise SlipstreamError(
                Code.UPSTREAM_FAILED, f"the server of {lease.server.model!r} answered without a stream"
            )
        send, pieces = reply.send, reply.account.pieces
        pieces.is_stream = is_stream
        add = pieces.add
        try:
            async for chunk in response.content.iter_any():
                add(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError as e:
            raise SlipstreamError(Code.UPSTREAM_TIMEOUT, f"the server of {lease.server.model!r} went silent") from e
        except aiohttp.ClientError as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, _broke(lease)) from e
        await reply.end()
        return _outcome(response.status)

    async def erase(self, lease: Lease, slot: int) -> bool:
        """Empty a slot; False, and a line in the log, when the server does not."""
        try:
            async with await self._post(
                lease, f"/slots/{slot}?action=erase", {}, b"", aiohttp.ClientTimeout(_ERASE_TIMEOUT_SECONDS)
            ) as response:
                if response.status == HTTPStatus.OK:
                    return True
                said = str(response.status)
        except (aiohttp.ClientError, TimeoutError) as e:
            said = type(e).__name__
        _log.warning("slot %d of %r could not be emptied: %s", slot, lease.server.model, said)
        return False

    async def _post(
        self,
        lease: Lease,
        path: str,
        headers: dict[str, str],
        body: bytes,
        limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        session = self._session(lease.instance)
        return await session.post(
            lease.url + path,
            data=body,
            headers=headers | {"authorization": lease.authorization},
            allow_redirects=False,
            timeout=limits or session.timeout,
        )

    async def _relay_error(self, response: aiohttp.ClientResponse, lease: Lease, reply: Reply) -> str:
        try:
            body = await response.content.read(_LONGEST_ERROR_BYTES)
        except (aiohttp.ClientError, TimeoutError) as e:
            raise SlipstreamError(Code.UPSTREAM_FAILED, _broke(lease)) from e
        if reply.has_begun:
            await reply.fail(refused_by(lease.server.model, response.status, body))
        else:
            body = translated(response.status, body, reply.dialect)
            headers = [(k, v) for k, v in _passed(response) if k != b"content-length"]
            await reply.begin(response.status, [*headers, (b"content-length", b"%d" % len(body))])
            await reply.end(body)
        return _outcome(response.status)


def _passed(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    headers = [(k.lower(), v) for k, v in response.raw_headers]
    return [(k, v) for k, v in headers if k not in _NOT_PASSED and not k.startswith(_NOT_PASSED_PREFIX)]


def _outcome(status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "client_error" if status >= HTTPStatus.BAD_REQUEST else "ok"


def _broke(lease: Lease) -> str:
    failure = lease.instance.failure or lease.server.failure
    reason = failure.message if failure else "the connection to it broke"
    return f"the server of {lease.server.model!r} failed during the answer: {reason}"
