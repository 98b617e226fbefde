"""An answer that has to wait: what the client hears meanwhile, and what becomes of errors then."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from orchestrator.errors import Code, SlipstreamError
from tests.support.asgi import Call, post
from tests.support.backend import GatewayBench, gateway_bench
from tests.unit.conftest import until

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COMMENT = b": waiting for 'a': it loads, since 3 s\n\n"


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    async with gateway_bench(keep_alive_seconds=0.02) as made:
        yield made


async def stream(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b"data: 1\n\n")
    await answer.write(b"data: [DONE]\n\n")
    return answer


def asked(bench: GatewayBench, path: str = CHAT, **fields: Any) -> Call:
    return post(bench.app, path, {"model": "a", "stream": True, **fields})


def last_event(call: Call) -> Any:
    return json.loads(call.content.decode().strip().splitlines()[-1].removeprefix("data: "))


async def after_a_comment(bench: GatewayBench, call: Call) -> "asyncio.Task[Call]":
    """Have the call wait for its lease until it has been told so."""
    bench.backend.gate.clear()
    running = asyncio.create_task(call.run())
    await until(lambda: call.chunks, "a comment has come")
    return running


async def test_a_stream_is_told_why_it_waits_and_then_gets_its_answer(bench: GatewayBench) -> None:
    bench.backend.handler = stream
    call = asked(bench)
    running = await after_a_comment(bench, call)
    await until(lambda: len(call.chunks) >= 3, "comments go on")
    assert call.status == 200
    assert call.header("content-type") == ["text/event-stream"]
    assert call.header("cache-control") == ["no-cache"] and call.header("x-accel-buffering") == ["no"]
    bench.backend.gate.set()
    await running
    assert set(call.content.partition(b"data: ")[0].split(b"\n\n")) == {COMMENT.strip(), b""}
    assert call.content.endswith(b"data: 1\n\ndata: [DONE]\n\n") and call.ended
    assert bench.outcomes() == {"ok": 1}


async def test_comments_go_on_while_the_prompt_is_read(bench: GatewayBench) -> None:
    first_token = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await first_token.wait()
        return await stream(request)

    bench.backend.handler = slow
    call = asked(bench)
    running = await after_a_comment(bench, call)
    bench.backend.gate.set()
    await until(lambda: b"reads the prompt" in call.content, "it is told what it waits for now")
    first_token.set()
    assert (await running).content.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_has_its_server_does_not_begin_before_the_server_answers(bench: GatewayBench) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return web.json_response({"error": {"message": "no"}}, status=400)

    bench.backend.handler = refuse
    call = await asked(bench).run()
    assert (call.status, call.json()) == (400, {"error": {"message": "no"}})


async def test_a_plain_call_hears_nothing_before_its_answer(bench: GatewayBench) -> None:
    bench.backend.gate.clear()
    call = post(bench.app, CHAT, {"model": "a"})
    running = asyncio.create_task(call.run())
    await until(lambda: bench.backend.asked, "it waits")
    await asyncio.sleep(0.1)
    assert call.status == 0
    bench.backend.gate.set()
    assert (await running).status == 200


async def test_a_refusal_before_the_first_comment_is_a_status(bench: GatewayBench) -> None:
    bench.backend.refusal = SlipstreamError(Code.QUEUE_FULL, "too many", retry_after_seconds=7)
    call = await asked(bench).run()
    assert (call.status, call.header("retry-after")) == (429, ["7"])
    assert call.json()["error"]["code"] == "queue_full"
    assert bench.outcomes() == {"client_error": 1}


async def test_a_refusal_after_it_ends_the_stream_with_an_error_event(bench: GatewayBench) -> None:
    call = asked(bench)
    running = await after_a_comment(bench, call)
    bench.backend.refusal = SlipstreamError(Code.WAIT_TIMEOUT, "too long", retry_after_seconds=7)
    bench.backend.gate.set()
    await running
    assert last_event(call)["error"]["code"] == "wait_timeout"
    assert b"[DONE]" not in call.content and call.ended
    assert bench.outcomes() == {"server_error": 1}


async def test_anthropic_clients_get_events_of_their_own_shape(bench: GatewayBench) -> None:
    call = asked(bench, MESSAGES)
    running = await after_a_comment(bench, call)
    bench.backend.refusal = SlipstreamError(Code.WAIT_TIMEOUT, "too long")
    bench.backend.gate.set()
    await running
    *_, name, data = call.content.decode().strip().splitlines()
    assert name == "event: error"
    error = {"type": "overloaded_error", "message": "too long"}
    assert json.loads(data.removeprefix("data: ")) == {"type": "error", "error": error}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_what_the_server_refuses_after_a_comment_is_an_event_too(bench: GatewayBench, path: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "context too long"}}, status=400)

    bench.backend.handler = refuse
    call = asked(bench, path)
    running = await after_a_comment(bench, call)
    bench.backend.gate.set()
    await running
    assert "the server of 'a' answered 400: context too long" in last_event(call)["error"]["message"]
    assert last_event(call)["error"]["type"] == "invalid_request_error"
    assert call.ended and b"event: error" in call.content if path == MESSAGES else call.ended
    assert bench.outcomes() == {"client_error": 1}


async def test_an_answer_that_is_no_stream_after_a_comment_is_an_error(bench: GatewayBench) -> None:
    call = asked(bench)
    running = await after_a_comment(bench, call)
    bench.backend.gate.set()
    await running
    assert "without a stream" in last_event(call)["error"]["message"]


async def test_a_client_that_leaves_while_it_waits_is_counted_and_holds_no_lease(bench: GatewayBench) -> None:
    call = asked(bench)
    running = await after_a_comment(bench, call)
    call.left.set()
    async with asyncio.timeout(1):
        await running
    bench.backend.gate.set()
    assert bench.outcomes() == {"cancelled": 1}
    assert len(bench.backend.leases) == bench.backend.released and bench.backend.heard == []
