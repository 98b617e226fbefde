"""Stands in for a llama-server that decodes at a set pace: it streams chunks at next to no cost.

Every stream gets its first token at once and then one at each tick, all of them at the same moment, as a batch of
slots does. A token is the time at which it was written, `@microseconds@` of CLOCK_MONOTONIC.

    python -m bench.peers.paced --pace TOKENS_PER_SECOND [LLAMA_SERVER_ARGUMENT ...]
"""

import asyncio
import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

_TEMPLATE = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":%s}],"created":1796016670,"id":"chatcmpl-'
    'ePIbMKASMQPEMr9ydKQlnhJJutsXHN1K","model":"toy","system_fingerprint":"b11434","object":"chat.completion.chunk"}'
)


def _event(text: str) -> bytes:
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


# Times in microseconds have as many digits as this one for decades of uptime, so a chunk's length does not change.
_BEGIN = _event(_TEMPLATE % '{"role":"assistant","content":null}')
_TOKEN = _event(_TEMPLATE % '{"content":"@00000000000000@"}').replace(b"00000000000000", b"%014d")
_FINISH = _event(_TEMPLATE.replace("null", '"length"', 1) % "{}") + _event("[DONE]") + b"0\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nServer: llama.cpp\r\nTransfer-Encoding: chunked\r\n\r\n"


class Decoding:
    """The streams that run; each is given its next token at each tick."""

    def __init__(self, pace: float) -> None:
        self._seconds = 1 / pace
        self._left: dict[asyncio.Transport, int] = {}

    def add(self, transport: asyncio.Transport, tokens: int) -> None:
        """Begin a stream."""
        transport.write(_HEAD + _BEGIN + _TOKEN % (time.monotonic_ns() // 1000))
        if tokens > 1:
            self._left[transport] = tokens - 1
        else:
            transport.write(_FINISH)

    def drop(self, transport: asyncio.Transport) -> None:
        """Its client has gone."""
        self._left.pop(transport, None)

    async def run(self) -> None:
        """Tick for ever. A tick that comes late shortens the wait for the next."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self._seconds
            await asyncio.sleep(max(0.0, due - loop.time()))
            for transport, left in list(self._left.items()):
                token = _TOKEN % (time.monotonic_ns() // 1000)
                if left > 1:
                    self._left[transport] = left - 1
                    transport.write(token)
                else:
                    del self._left[transport]
                    transport.write(token + _FINISH)


class Connection(asyncio.Protocol):
    """Requests of one client, one after another."""

    def __init__(self, decoding: Decoding, slots: int, alias: str, key: str | None) -> None:
        self._decoding, self._slots, self._alias = decoding, slots, alias
        self._parser = httptools.HttpRequestParser(self)
        self._authorization = f"Bearer {key}".encode() if key else b""
        self._url = self._body = self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._decoding.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_begin(self) -> None:
        self._said = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._said = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, raw, self._body = self._url, self._body, b""
        body = json.loads(raw) if raw else {}
        if self._authorization and self._said != self._authorization:
            self._answer({"error": {"message": "Invalid API Key"}}, b"401 Unauthorized")
        elif body.get("stream"):
            self._decoding.add(self._transport, int(body["max_tokens"]))
        elif url == b"/props":
            self._answer({"total_slots": self._slots, "model_alias": self._alias})
        elif url == b"/slots":
            self._answer([{"id": slot, "is_processing": False} for slot in range(self._slots)])
        elif url == b"/completion":
            self._answer({"content": "x", "timings": {"predicted_n": body["n_predict"], "draft_n": 0}})
        elif url == b"/v1/models":
            self._answer({"object": "list", "data": [{"id": "toy", "object": "model"}]})
        else:
            self._answer({})

    def _answer(self, value: Any, status: bytes = b"200 OK") -> None:
        body = json.dumps(value).encode()
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(pace: float, slots: int, alias: str) -> None:
    """Listen on a free port, say where as llama-server does, until SIGTERM."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    decoding = Decoding(pace)
    key = os.environ.get("LLAMA_API_KEY")
    server = await loop.create_server(lambda: Connection(decoding, slots, alias, key), "127.0.0.1", 0, backlog=1024)
    ticks = asyncio.ensure_future(decoding.run())
    port = server.sockets[0].getsockname()[1]
    print(f"main: server is listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    await ended.wait()
    ticks.cancel()
    server.close()


def main() -> None:
    """Answer for llama-server's command line."""
    arguments = sys.argv[1:]
    if "--version" in arguments or "--help" in arguments:
        from tests.support.fake_server import HELP, VERSION

        print(VERSION if "--version" in arguments else HELP)
        return
    if "--list-devices" in arguments:
        print("Available devices:")
        return
    said = dict(pairwise(arguments))
    pace, slots = float(said["--pace"]), int(said.get("--parallel", 1))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(pace, slots, said.get("--alias", "")))


def program(folder: Path, pace: float) -> Path:
    """An executable under `folder` that is this server, as an orchestrator wants a llama-server to be."""
    path = folder / f"paced-{pace:g}"
    repository = Path(__file__).parent.parent.parent
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{repository}" exec "{sys.executable}" -m bench.peers.paced --pace {pace:g} "$@"\n'
    )
    os.chmod(path, 0o755)
    return path


if __name__ == "__main__":
    main()
