"""What is told of each request: its id, its line in the log, and the moments that its metrics are made of."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from orchestrator.api import Guard
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway import Front
from orchestrator.gateway.account import Account
from tests import REPOSITORY
from tests.support.asgi import Call, post
from tests.support.backend import GatewayBench, gateway_bench
from tests.unit.conftest import until

CHAT = "/v1/chat/completions"
TIMINGS = {"cache_n": 1, "prompt_n": 2, "predicted_n": 11, "predicted_ms": 50.0, "draft_n": 7, "draft_n_accepted": 5}
SECRET = "what nobody may read"
Line = dict[str, Any]
Lines = Callable[[], list[Line]]


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    async with gateway_bench(keep_alive_seconds=0.02) as made:
        yield made


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO)
    return lambda: [vars(record) for record in caplog.records if record.name == "slipstream.requests"]


def metric(bench: GatewayBench, name: str) -> float:
    return next(
        s.value for family in bench.requests.collect() for s in family.samples if s.name == f"slipstream_{name}"
    )


def ask(app: ASGIApp, *, stream: bool = False, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    body = {"model": "a", "stream": stream, "messages": [{"role": "user", "content": SECRET}], **fields}
    return Call(app, "POST", CHAT, json.dumps(body).encode(), headers or {})


async def whole(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.08)
    return web.json_response({"choices": [{"message": {"content": SECRET}}], "timings": TIMINGS})


async def streamed(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b'data: {"delta":"a"}\n\n')
    await asyncio.sleep(0.03)
    await answer.write(b"data: " + json.dumps({"timings": TIMINGS}).encode() + b"\n\ndata: [DONE]\n\n")
    return answer


class TestRequestId:
    @pytest.mark.parametrize("given", ["a", "A.b_c~d:e/f+g=h@i-0", "x" * 128])
    async def test_that_of_the_client_comes_back(self, bench: GatewayBench, lines: Lines, given: str) -> None:
        call = await ask(Front(bench.app), headers={"x-request-id": given}).run()
        assert (call.status, call.header("x-request-id")) == (200, [given])
        assert lines()[0]["request_id"] == given

    @pytest.mark.parametrize("given", ["", "x" * 129, "a b", "é", 'a"b', "<b>", "a\tb"])
    async def test_one_that_is_no_short_word_is_replaced(self, bench: GatewayBench, lines: Lines, given: str) -> None:
        call = await ask(Front(bench.app), headers={"x-request-id": given}).run()
        [made] = call.header("x-request-id")
        assert len(made) == 32 and int(made, 16)
        assert lines()[0]["request_id"] == made

    async def test_every_request_has_another_one(self, bench: GatewayBench) -> None:
        calls = [await ask(Front(bench.app)).run() for _ in range(3)]
        assert len({call.header("x-request-id")[0] for call in calls}) == 3

    @pytest.mark.parametrize("path, status", [(CHAT, 404), ("/v1/nowhere", 404), ("/v1/models", 405)])
    async def test_errors_have_one(self, bench: GatewayBench, path: str, status: int) -> None:
        call = await post(Front(bench.app), path, {"model": "nobody"}).run()
        assert call.status == status and len(call.header("x-request-id")) == 1

    async def test_so_has_what_is_refused_at_the_door(self, bench: GatewayBench, lines: Lines) -> None:
        front = Front(Guard(bench.app, ["admin"], ["key"], ["localhost"]))
        call = await ask(front, headers={"authorization": "Bearer wrong-key"}).run()
        assert (call.status, len(call.header("x-request-id"))) == (401, 1)
        [line] = lines()
        assert (line["status"], line["outcome"]) == (401, "client_error")
        assert "wrong-key" not in str(line)

    async def test_so_has_the_control_plane_which_has_no_line(self, lines: Lines) -> None:
        call = await Call(Front(PlainTextResponse("x")), "GET", "/api/servers").run()
        assert len(call.header("x-request-id")) == 1
        assert lines() == []


class TestLine:
    async def test_of_a_whole_answer(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.handler = whole
        await ask(Front(bench.app), headers={"authorization": "Bearer secret-key", "x-request-id": "mine"}).run()
        [line] = lines()
        known = {"method": "POST", "route": CHAT, "model": "a", "status": 200, "outcome": "ok", "request_id": "mine"}
        known |= {"input_tokens": 3, "output_tokens": 11, "drafted_tokens": 7, "accepted_tokens": 5}
        assert known.items() <= line.items()
        assert 0 <= line["waited_seconds"] <= line["seconds"]
        assert {"error", "slot", "trace_id"}.isdisjoint(line)
        assert SECRET not in str(line) and "secret-key" not in str(line)

    async def test_of_a_stream(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.handler = streamed
        await ask(Front(bench.app), stream=True).run()
        [line] = lines()
        assert (line["outcome"], line["output_tokens"]) == ("ok", 11)
        assert 0 < line["time_to_first_token_seconds"] < line["seconds"]

    async def test_of_a_refusal(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.refusal = SlipstreamError(Code.QUEUE_FULL, "too many")
        await ask(Front(bench.app)).run()
        [line] = lines()
        assert (line["status"], line["outcome"], line["error"]) == (429, "client_error", "queue_full")
        assert "output_tokens" not in line

    async def test_a_failure_is_a_warning(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.refusal = SlipstreamError(Code.UPSTREAM_FAILED, "broke")
        await ask(Front(bench.app)).run()
        assert [(line["levelname"], line["outcome"]) for line in lines()] == [("WARNING", "server_error")]

    async def test_of_a_client_that_left(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.gate.clear()
        call = ask(Front(bench.app))
        running = asyncio.create_task(call.run())
        await until(lambda: bench.backend.asked, "it waits")
        assert metric(bench, "requests_running") == 1
        call.left.set()
        await running
        [line] = lines()
        assert line["outcome"] == "cancelled" and "status" not in line
        assert metric(bench, "requests_running") == 0

    async def test_a_strangers_path_cannot_make_a_line_of_its_own(self, bench: GatewayBench, lines: Lines) -> None:
        path = "/v1/x\n2026 INFO all is well\x1b[2J" + "y" * 1000
        call = Call(Front(bench.app), "POST", "/v1/x")
        call.path = path
        await call.run()
        [line] = lines()
        assert line["route"].startswith("/v1/x\\n2026") and line["route"].isprintable() and len(line["route"]) < 130

    async def test_nor_a_span_as_large_as_it_likes(self, bench: GatewayBench) -> None:
        told: dict[str, Any] = {}

        class Noted:
            def request(self, name: str, headers: dict[str, str], attributes: dict[str, Any]) -> Any:
                told.update(attributes, name=name)
                return SimpleNamespace(trace_id="", is_kept=False, note=lambda _: None, end=lambda *_: None)

        tracing: Any = Noted()
        await Call(Front(bench.app, tracing), "GET", f"/v1/{'x' * 100_000}").run()
        assert told["name"] == "GET" and all(len(str(value)) <= 100 for value in told.values())

    async def test_a_slot_that_the_client_asked_for(self, bench: GatewayBench, lines: Lines) -> None:
        await ask(Front(bench.app), id_slot=3).run()
        assert lines()[0]["slot"] == 1


def test_the_document_lists_the_fields_of_a_line() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (REPOSITORY / "docs/logs.md").read_text(), re.M)
    written = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert written == [name for name, _ in Account("", "GET", "/v1/models")._fields()]


class TestMoments:
    async def test_a_stream_is_waited_for_and_comments_are_no_token(self, bench: GatewayBench, lines: Lines) -> None:
        bench.backend.handler = streamed
        bench.backend.gate.clear()
        call = ask(Front(bench.app), stream=True)
        began = time.monotonic()
        running = asyncio.create_task(call.run())
        await until(lambda: len(call.chunks) > 1, "comments have come")
        waited = time.monotonic() - began
        bench.backend.gate.set()
        await running
        assert metric(bench, "time_to_first_token_seconds_sum") >= waited
        assert lines()[0]["waited_seconds"] >= waited * 0.9
        assert metric(bench, "inter_token_latency_seconds_sum") >= 0.02

    async def test_an_answer_that_is_not_streamed_had_its_first_token_earlier(self, bench: GatewayBench) -> None:
        bench.backend.handler = whole
        await ask(Front(bench.app)).run()
        first, took = metric(bench, "time_to_first_token_seconds_sum"), metric(bench, "request_seconds_sum")
        assert 0.08 - 0.05 - 0.005 < first <= took - 0.05
        assert metric(bench, "time_per_output_token_seconds_sum") == pytest.approx(0.005)

    @pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"]}])
    async def test_unless_it_has_several_sequences(self, bench: GatewayBench, fields: dict[str, Any]) -> None:
        bench.backend.handler = whole
        await ask(Front(bench.app), **fields).run()
        assert metric(bench, "request_seconds_sum") > 0
        assert metric(bench, "time_to_first_token_seconds_sum") == 0

    async def test_what_the_model_file_asks_for_counts_as_if_the_client_had(self) -> None:
        async def progresses(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            await answer.write(b'data: {"prompt_progress":{"total":9}}\n\n')
            await asyncio.sleep(0.05)
            await answer.write(b'data: {"delta":"a"}\n\n')
            return answer

        async with gateway_bench(defaults={"return_progress": True, "n": 2}) as bench:
            bench.backend.handler = whole
            await ask(Front(bench.app)).run()
            assert metric(bench, "time_to_first_token_seconds_count") == 0
            bench.backend.handler = progresses
            await ask(Front(bench.app), stream=True).run()
            assert metric(bench, "time_to_first_token_seconds_sum") >= 0.05

    async def test_an_answer_that_breaks_off_has_a_first_token_and_no_time_of_its_own(
        self, bench: GatewayBench, lines: Lines
    ) -> None:
        async def breaks(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            await answer.write(b'data: {"delta":"a"}\n\n')
            assert request.transport is not None
            request.transport.abort()
            return answer

        bench.backend.handler = breaks
        await ask(Front(bench.app), stream=True).run()
        assert metric(bench, "time_to_first_token_seconds_sum") > 0
        assert metric(bench, "request_seconds_sum") == 0
        assert [(line["outcome"], line["status"], line["error"]) for line in lines()] == [
            ("server_error", 200, "upstream_failed")
        ]
