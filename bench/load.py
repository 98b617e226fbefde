"""A light client: raw sockets, one request a connection, as little work for each chunk as telling the time takes."""

import asyncio
import gc
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import httptools
import uvloop

T = TypeVar("T")
# A chunk that says something. Role and end of an answer say nothing, null or an empty string.
_TOKEN = re.compile(rb'"content": ?"(?:@(\d+)@|[^"])')
_DONE = b"data: [DONE]"


@dataclass(frozen=True)
class Address:
    """Where to ask, and with which key."""

    host: str
    port: int
    key: str = ""

    @classmethod
    def of(cls, url: str, key: str = "") -> Self:
        """The address of `http://host:port`."""
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        return cls(parts.hostname, parts.port, key)

    def request(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Bytes of a POST on a connection of its own."""
        raw = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Content-Type: application/json"]
        head += [f"Content-Length: {len(raw)}", "Connection: close"]
        head += [f"Authorization: Bearer {self.key}"] if self.key else []
        return "\r\n".join((*head, "", "")).encode() + raw


@dataclass(slots=True)
class Answer:
    """An answer as its client saw it; times of `time.perf_counter`.

    `delays` are seconds from the stamp in a chunk (bench/peers/paced.py) to its arrival.
    """

    began: float
    status: int = 0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    is_whole: bool = False
    body: bytes = b""
    error: str = ""
    delays: list[float] = field(default_factory=list)

    @property
    def first_seconds(self) -> float:
        """Time to the first token."""
        return self.first - self.began

    @property
    def pace(self) -> float:
        """Tokens a second, from the request on: bunching late ones together does not make up for them."""
        return (self.tokens - 1) / (self.last - self.began) if self.tokens > 1 else 0.0

    def require(self, tokens: int) -> None:
        """RuntimeError unless it is whole and has that many tokens."""
        if not (self.is_whole and self.tokens == tokens):
            said = self.error or self.body[:300].decode(errors="replace")
            raise RuntimeError(f"status {self.status}, {self.tokens} of {tokens} tokens: {said}")


class _Exchange(asyncio.Protocol):
    """One request, one answer; `answer` is told everything, `over` when there is no more."""

    def __init__(self, request: bytes, answer: Answer, *, is_stream: bool) -> None:
        self._request, self._answer = request, answer
        self._is_stream = is_stream
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._answer.error = f"no HTTP: {e}"
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self._is_stream = self._is_stream and self._answer.status == 200

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if not self._is_stream:
            answer.body += body
            return
        now = time.perf_counter()
        data = self._rest + body
        whole = data.rfind(b"\n\n") + 2
        self._rest = data[whole:] if whole > 1 else data
        if whole == 1:
            return
        for found in _TOKEN.finditer(data, 0, whole):
            answer.tokens += 1
            answer.last = now
            if found[1]:
                answer.delays.append(now - int(found[1]) / 1e6)
        answer.first = answer.first or answer.last
        if data.find(_DONE, 0, whole) >= 0:
            answer.is_whole = True

    def on_message_complete(self) -> None:
        self._answer.is_whole = self._answer.is_whole or not self._is_stream
        self._answer.last = self._answer.last or time.perf_counter()
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._answer.error = self._answer.error or repr(error)
        if not self.over.done():
            self.over.set_result(None)


async def ask(address: Address, path: str, body: Mapping[str, Any], timeout_seconds: float) -> Answer:
    """Send a request and read its answer to the end; what goes wrong stands in the answer."""
    request = address.request(path, body)
    answer = Answer(time.perf_counter())
    try:
        async with asyncio.timeout(timeout_seconds):
            transport, exchange = await asyncio.get_running_loop().create_connection(
                lambda: _Exchange(request, answer, is_stream=bool(body.get("stream"))), address.host, address.port
            )
            try:
                await exchange.over
            finally:
                transport.abort()
    except TimeoutError:
        answer.error, answer.is_whole = f"no end within {timeout_seconds:g} s", False
    except OSError as e:
        answer.error = repr(e)
    return answer


async def staggered(count: int, seconds_apart: float, start: Callable[[], Awaitable[T]]) -> list[T]:
    """Results of `count` calls, begun one after another at fixed times, whatever the earlier ones do."""
    began = asyncio.get_running_loop().time()
    running = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number * seconds_apart - asyncio.get_running_loop().time()))
        running.append(asyncio.ensure_future(start()))
    return list(await asyncio.gather(*running))


def measured(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on a loop that is as fast as they get here, without collections of garbage in between."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_awaited(work))
    finally:
        gc.enable()


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
