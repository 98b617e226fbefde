"""Leases: each is given back, a cut ends its answer, a server that died is replaced once."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from orchestrator.errors import Code, SlipstreamError
from tests.support.asgi import Call, post
from tests.support.backend import GatewayBench, gateway_bench
from tests.unit.conftest import until

CHAT = "/v1/chat/completions"
CUT = SlipstreamError(Code.DRAINED, "the server had to end", retry_after_seconds=3)


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    async with gateway_bench() as made:
        yield made


class Endless:
    """A stream that goes on until its client leaves."""

    def __init__(self, chunk: bytes = b"data: 1\n\n", headers: dict[str, str] | None = None) -> None:
        self.chunk = chunk
        self.headers = headers or {"content-type": "text/event-stream"}
        self.sent_bytes = 0
        self.closed = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=self.headers)
        await answer.prepare(request)
        try:
            while True:
                await answer.write(self.chunk)
                self.sent_bytes += len(self.chunk)
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def asked(bench: GatewayBench, **fields: Any) -> Call:
    return post(bench.app, CHAT, {"model": "a", **fields})


async def test_a_lease_is_given_back_once_the_answer_has_ended(bench: GatewayBench) -> None:
    await asked(bench).run()
    assert bench.backend.released == 1


async def test_a_cut_ends_a_stream_with_an_event_and_closes_it_upstream(bench: GatewayBench) -> None:
    bench.backend.handler = endless = Endless()
    call = asked(bench, stream=True)
    running = asyncio.create_task(call.run())
    await until(lambda: len(call.chunks) > 2, "it streams")
    bench.backend.leases[0].end(CUT)
    await running
    assert json.loads(call.content.decode().strip().splitlines()[-1][6:])["error"]["code"] == "drained"
    assert call.ended and b"[DONE]" not in call.content
    async with asyncio.timeout(1):
        await endless.closed.wait()
    assert bench.backend.released == 1 and bench.outcomes() == {"server_error": 1}


async def test_a_cut_before_the_answer_is_a_503(bench: GatewayBench) -> None:
    bench.backend.handler = hang
    call = asked(bench)
    running = asyncio.create_task(call.run())
    await until(lambda: bench.backend.heard, "the server has it")
    bench.backend.leases[0].end(CUT)
    await running
    assert (call.status, call.header("retry-after"), call.json()["error"]["code"]) == (503, ["3"], "drained")


async def test_a_cut_in_a_plain_answer_leaves_it_unfinished(bench: GatewayBench) -> None:
    bench.backend.handler = Endless(headers={"content-type": "application/json"})
    call = asked(bench)
    running = asyncio.create_task(call.run())
    await until(lambda: call.chunks, "it has begun")
    bench.backend.leases[0].end(CUT)
    await running
    assert not call.ended, "the ASGI server breaks the connection"


async def test_a_cut_does_not_wait_for_a_client_that_takes_nothing(bench: GatewayBench) -> None:
    bench.backend.handler = Endless()
    call = asked(bench, stream=True)
    blocked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def stuck(message: Any) -> None:
            await send(message)
            if message.get("body"):
                blocked.set()
                await asyncio.Event().wait()

        await bench.app(scope, receive, stuck)

    call.app = app
    running = asyncio.create_task(call.run())
    await blocked.wait()
    bench.backend.leases[0].end(CUT)
    await until(lambda: bench.backend.released, "the lease is back", 0.5)
    async with asyncio.timeout(2):
        await running


async def test_a_server_that_died_before_it_heard_is_replaced_once(bench: GatewayBench) -> None:
    bench.backend.dead = {1}
    assert (await asked(bench).run()).status == 200
    assert len(bench.backend.leases) == 2 == bench.backend.released and len(bench.backend.heard) == 1
    assert bench.outcomes() == {"ok": 1}


async def test_one_that_dies_twice_is_a_502(bench: GatewayBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bench.backend.instance.child.url = f"http://127.0.0.1:{port}"
    call = await asked(bench).run()
    assert (call.status, call.json()["error"]["code"], call.header("retry-after")) == (502, "upstream_failed", ["1"])
    assert bench.backend.released == 2


async def test_a_client_that_leaves_before_the_first_byte_closes_it_upstream(bench: GatewayBench) -> None:
    gone = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        try:
            return await hang(request)
        finally:
            gone.set()

    bench.backend.handler = slow
    call = asked(bench)
    running = asyncio.create_task(call.run())
    await until(lambda: bench.backend.heard, "the server has it")
    call.left.set()
    async with asyncio.timeout(1):
        await running
        await gone.wait()
    assert bench.outcomes() == {"cancelled": 1} and bench.backend.released == 1


async def test_a_slow_client_slows_the_server(bench: GatewayBench) -> None:
    bench.backend.handler = endless = Endless(b"data: " + b"x" * 10_000 + b"\n\n")
    call = asked(bench, stream=True)
    blocked, sent = asyncio.Event(), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def stuck(message: Any) -> None:
            nonlocal sent
            sent += len(message.get("body", b""))
            if sent > 1_000_000:
                blocked.set()
                await asyncio.Event().wait()

        await bench.app(scope, receive, stuck)

    call.app = app
    running = asyncio.create_task(call.run())
    await blocked.wait()
    before = -1
    while endless.sent_bytes != before:
        before = endless.sent_bytes
        await asyncio.sleep(0.1)
    # What lies between is the kernel's buffers of one connection, and ours, which is small.
    assert endless.sent_bytes - sent < 8 << 20
    call.left.set()
    await running


async def test_defaults_go_in_front_of_the_clients_own_bytes() -> None:
    async with gateway_bench(defaults={"temperature": 0.5}) as bench:
        await post(bench.app, CHAT, b' { "model":"a","x" : 1.10}').run()
        await post(bench.app, CHAT, b'{"model":"a","temperature":null}').run()
        said = [body for _, body in bench.backend.heard]
        assert said == [b'{"temperature": 0.5, "model":"a","x" : 1.10}', b'{"model":"a","temperature":null}']


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/v1/messages/count_tokens", "/rerank"])
async def test_defaults_are_for_generation_alone(path: str) -> None:
    async with gateway_bench(defaults={"temperature": 0.5}) as bench:
        await post(bench.app, path, b'{"model":"a"}').run()
        assert bench.backend.heard[0][1] == b'{"model":"a"}'


async def test_logprobs_of_a_drafting_server_without_our_patches_are_refused(bench: GatewayBench) -> None:
    bench.backend.launch.spec_type, bench.backend.launch.is_patched = "draft-mtp", False
    call = await asked(bench, logprobs=True).run()
    assert call.status == 400 and "no real logprobs" in call.json()["error"]["message"]
    assert bench.backend.heard == [] and bench.backend.released == 1


async def test_without_a_model_the_only_one_is_meant(bench: GatewayBench) -> None:
    assert (await post(bench.app, CHAT, {}).run()).status == 200


class TestForms:
    FORM = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n'
    PATH = "/v1/audio/transcriptions"

    async def test_pass_untouched(self, bench: GatewayBench) -> None:
        kind = "multipart/form-data; boundary=b"
        call = await Call(bench.app, "POST", self.PATH, self.FORM, {"content-type": kind}).run()
        assert call.status == 200
        assert bench.backend.heard == [(self.PATH, self.FORM)]
        assert bench.backend.headers[0]["content-type"] == kind

    async def test_with_an_unknown_model_are_a_404(self, bench: GatewayBench) -> None:
        form = self.FORM.replace(b"\r\na\r\n", b"\r\nnobody\r\n")
        call = await Call(bench.app, "POST", self.PATH, form, {"content-type": "multipart/form-data; boundary=b"}).run()
        assert call.status == 404


class TestAnthropic:
    PATH = "/v1/messages"

    @pytest.mark.parametrize(
        "raw, status, kind",
        [
            (b"{", 400, "invalid_request_error"),
            (b'{"model": "nobody"}', 404, "not_found_error"),
            (b" " * (1 << 21), 413, "request_too_large"),
        ],
    )
    async def test_errors_have_its_shape(self, bench: GatewayBench, raw: bytes, status: int, kind: str) -> None:
        call = await post(bench.app, self.PATH, raw).run()
        assert call.status == status
        assert set(call.json()) == {"type", "error"} and call.json()["error"]["type"] == kind

    async def test_errors_of_the_server_are_translated(self, bench: GatewayBench) -> None:
        async def refuse(request: web.Request) -> web.StreamResponse:
            return web.json_response({"error": {"message": "no", "type": "x", "code": 400}}, status=400)

        bench.backend.handler = refuse
        call = await post(bench.app, self.PATH, {"model": "a"}).run()
        assert call.status == 400
        assert call.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
        assert call.header("content-length") == [str(len(call.content))]
