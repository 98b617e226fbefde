"""The gateway over the fake server: what reaches the server, what reaches the client, and every error."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateway import Gateway
from orchestrator.schemas import ServerState
from orchestrator.telemetry import Requests
from tests.support import eventually
from tests.support.asgi import Call, post
from tests.support.orchestrator import is_gone
from tests.unit.conftest import World, until

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
LIMIT_BYTES = 10_000


class Bench:
    """A gateway over a world, and its request counters."""

    def __init__(self, world: World, upstream_timeout_seconds: float = 30.0) -> None:
        self.world = world
        self.requests = Requests()
        self.app = Gateway(world.manager, self.requests, LIMIT_BYTES, upstream_timeout_seconds, 30.0)

    def outcomes(self) -> dict[str, float]:
        family = next(iter(self.requests.collect()))
        return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.value}

    async def chat(self, model: str = "a", **fields: Any) -> Call:
        return await post(self.app, CHAT, {"model": model, **fields}).run()


@asynccontextmanager
async def open_bench(bench: Bench) -> AsyncIterator[Bench]:
    try:
        yield bench
    finally:
        await bench.app.close()


@pytest.fixture
async def bench(world: World) -> AsyncIterator[Bench]:
    async with open_bench(Bench(world)) as made:
        yield made


def error_of(call: Call) -> dict[str, Any]:
    """The error of an answer, whose shape must be OpenAI's."""
    assert call.header("content-type") == ["application/json"]
    error: dict[str, Any] = call.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def seen(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_bytes_of_request_and_answer_pass_untouched(bench: Bench, tmp_path: Path) -> None:
    plain = '{"é": "\U0001f600",  "timings": {"x": 1.10}, "unknown":[ ]}'
    await bench.world.model("a", seen=str(tmp_path / "seen"), plain=plain)
    raw = '{ "model":"a","odd" : {"x": 1.10}, "messages": "é\U0001f600" }'.encode()
    call = await post(bench.app, CHAT, raw).run()
    assert (call.status, call.content.decode()) == (200, plain)
    [request] = seen(tmp_path / "seen")
    assert (request["path"], request["body"].encode()) == (CHAT, raw)
    assert bench.outcomes() == {"ok": 1}


async def test_what_the_server_must_not_hear_or_say_is_left_out(bench: Bench, tmp_path: Path) -> None:
    await bench.world.model("a", seen=str(tmp_path / "seen"))
    headers = {"authorization": "Bearer mine", "cookie": "c=1", "x-forwarded-for": "1.2.3.4", "accept-encoding": "gzip"}
    call = await Call(bench.app, "POST", CHAT, b'{"model": "a"}', headers).run()
    [request] = seen(tmp_path / "seen")
    heard = {k.lower(): v for k, v in request["headers"].items()}
    assert "mine" not in str(heard) and "cookie" not in heard and "x-forwarded-for" not in heard
    assert heard["accept-encoding"] == "identity"
    said = {name.decode() for name, _ in call.answer_headers}
    assert said.isdisjoint({"server", "date", "access-control-allow-origin", "connection", "transfer-encoding"})
    assert "Bearer" not in str(call.answer_headers)


async def test_defaults_of_the_model_reach_the_server(bench: Bench, tmp_path: Path) -> None:
    await bench.world.model("a", {"defaults": {"temperature": 0.5, "top_p": 0.9}}, seen=str(tmp_path / "seen"))
    await bench.chat(top_p=0.1)
    [request] = seen(tmp_path / "seen")
    assert json.loads(request["body"]) == {"model": "a", "top_p": 0.1, "temperature": 0.5}


async def test_stream_passes_chunk_by_chunk(bench: Bench, tmp_path: Path) -> None:
    # Cut in the middle of a character and of an event.
    whole = 'data: {"x": "é"}\n\ndata: [DONE]\n\n'.encode()
    chunks = [whole[:13].decode("latin-1"), whole[13:20].decode("latin-1"), whole[20:].decode("latin-1")]
    gate = bench.world.gate("chunk")
    await bench.world.model("a", chunks=chunks, chunk_gate=str(gate))
    call = post(bench.app, CHAT, {"model": "a", "stream": True})
    running = asyncio.create_task(call.run())
    await until(lambda: call.content == whole[:13], "the first chunk passes before the second is there")
    gate.touch()
    await running
    assert call.content == whole
    assert call.header("cache-control") == ["no-cache"] and call.header("x-accel-buffering") == ["no"]
    assert call.header("content-type") == ["text/event-stream"]


async def test_a_server_that_dies_in_mid_stream_ends_with_an_error_event(bench: Bench) -> None:
    await bench.world.model("a", chunks=['data: {"x": 1}\n\n', 'data: {"half'], die_after_chunks=True)
    call = await post(bench.app, CHAT, {"model": "a", "stream": True}).run()
    assert call.ended
    assert b"[DONE]" not in call.content
    events = [line for line in call.content.decode().split("\n") if line.startswith("data: ")]
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "upstream_failed")
    assert bench.outcomes() == {"server_error": 1}
    await until(lambda: bench.world.manager.server("a").state is ServerState.FAILED, "its end is seen")


async def test_a_client_that_leaves_a_stream_closes_it_upstream(bench: Bench, tmp_path: Path) -> None:
    gate, closed = bench.world.gate("never"), str(tmp_path / "c")
    await bench.world.model("a", chunks=["data: 1\n\n", "data: 2\n\n"], chunk_gate=str(gate), closed=closed)
    call = post(bench.app, CHAT, {"model": "a", "stream": True})
    running = asyncio.create_task(call.run())
    await until(lambda: call.chunks, "the stream has begun")
    call.left.set()
    await running
    await until((tmp_path / "c").exists, "the server sees the client leave", 1.0)
    assert bench.outcomes() == {"cancelled": 1}


async def test_a_client_that_leaves_while_waiting_is_counted_and_the_load_goes_on(bench: Bench, tmp_path: Path) -> None:
    gate = bench.world.gate("load")
    await bench.world.model("a", load_gate=str(gate), seen=str(tmp_path / "seen"))
    call = post(bench.app, CHAT, {"model": "a"})
    running = asyncio.create_task(call.run())
    await until(lambda: bench.world.starts("a"), "it loads")
    call.left.set()
    async with asyncio.timeout(1):
        await running
    assert bench.outcomes() == {"cancelled": 1}
    gate.touch()
    await until(lambda: bench.world.manager.server("a").is_ready, "the load has ended well")
    assert seen(tmp_path / "seen") == []


async def test_a_client_that_leaves_with_half_a_body_costs_nothing(bench: Bench) -> None:
    await bench.world.model("a")
    call = Call(bench.app, "POST", CHAT, b'{"model"', more=True)
    call.left.set()
    await call.run()
    assert bench.world.starts("a") == []


@pytest.mark.parametrize(
    "raw, status, word",
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe{", 400, "not JSON"),
        (b"[" * 100_00, 400, "not JSON"),
        (b"[]", 400, "expected a JSON object, got list"),
        (b"{}", 400, "one of the known models: a, b"),
        (b'{"model": 7}', 400, "got 7"),
        (b'{"model": ""}', 400, "one of the known models: a, b"),
        (b'{"model": "nobody"}', 404, "no model 'nobody'; known models: a, b"),
        (b'{"model": "../../etc/passwd"}', 404, "no model"),
        (b" " * (LIMIT_BYTES + 1), 413, f"{LIMIT_BYTES} bytes"),
    ],
)
async def test_a_wrong_request_is_told_in_openai_shape(bench: Bench, raw: bytes, status: int, word: str) -> None:
    await bench.world.model("a")
    await bench.world.model("b")
    call = await post(bench.app, CHAT, raw).run()
    assert call.status == status
    assert word in error_of(call)["message"]
    assert error_of(call)["type"] == "invalid_request_error"
    assert bench.world.starts("a") == []


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/slots", 404),
        ("GET", "/v1/props", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/../slots", 404),
    ],
)
async def test_routes_are_an_allow_list(bench: Bench, method: str, path: str, status: int) -> None:
    await bench.world.model("a")
    call = await Call(bench.app, method, path, b'{"model": "a"}').run()
    assert call.status == status
    error_of(call)
    if status == 405:
        assert call.header("allow") == ["GET" if path == "/v1/models" else "POST"]


async def test_models_are_listed_with_their_aliases(bench: Bench) -> None:
    await bench.world.model("b", {"aliases": ["short"]})
    call = await Call(bench.app, "GET", "/v1/models").run()
    assert [(entry["id"], entry["root"]) for entry in call.json()["data"]] == [("b", "b"), ("short", "b")]
    one = await Call(bench.app, "GET", "/v1/models/short").run()
    always = {"object": "model", "created": 0, "owned_by": "slipstream", "root": "b"}
    assert one.json() == {"id": "short", "state": "stopped", "status": {"value": "unloaded"}} | always
    await bench.chat("short")
    loaded = (await Call(bench.app, "GET", "/models").run()).json()["data"]
    assert [(entry["state"], entry["status"]) for entry in loaded] == [("ready", {"value": "loaded"})] * 2


async def test_a_server_that_does_not_start_is_a_503_with_retry_after(bench: Bench) -> None:
    await bench.world.model("a", exit_in_load=1, complaint=f"E no such file {bench.world.folder}/x")
    for code in ("server_start_failed", "quarantined"):
        call = await bench.chat()
        assert call.status == 503
        assert int(call.header("retry-after")[0]) > 0
        assert error_of(call)["code"] == code
        assert str(bench.world.folder) not in call.content.decode()
    assert len(bench.world.starts("a")) == 1
    assert bench.outcomes() == {"server_error": 2}


async def test_a_killed_server_is_replaced_within_the_request(bench: Bench) -> None:
    await bench.world.model("a")
    assert (await bench.chat()).status == 200
    child = bench.world.manager.server("a").child
    assert child is not None
    child.kill()
    # Without a turn of the loop: the orchestrator cannot know yet.
    eventually(lambda: is_gone(child.pid or 0), "the process is gone")
    assert (await bench.chat()).status == 200
    assert len(bench.world.starts("a")) == 2
    assert bench.outcomes() == {"ok": 2}


async def test_a_request_that_kills_its_server_is_not_sent_again(bench: Bench) -> None:
    await bench.world.model("a", die_in_answer=True)
    call = await bench.chat()
    assert (call.status, error_of(call)["code"]) == (502, "upstream_failed")
    assert len(bench.world.starts("a")) == 1


class TestSilence:
    """A server that says nothing for longer than the upstream timeout."""

    @pytest.fixture
    async def bench(self, world: World) -> AsyncIterator[Bench]:
        async with open_bench(Bench(world, upstream_timeout_seconds=0.3)) as made:
            yield made

    async def test_before_the_answer_is_a_504(self, bench: Bench) -> None:
        hang = bench.world.gate("hang")
        hang.touch()
        await bench.world.model("a", answer_hang=str(hang))
        call = await bench.chat()
        assert (call.status, error_of(call)["code"]) == (504, "upstream_timeout")
        assert bench.outcomes() == {"server_error": 1}

    async def test_in_mid_stream_ends_it_with_an_error_event(self, bench: Bench, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        gate = bench.world.gate("never")
        chunks = ["data: 1\n\n", "data: 2\n\n"]
        await bench.world.model("a", chunks=chunks, chunk_gate=str(gate), closed=str(closed))
        call = await post(bench.app, CHAT, {"model": "a", "stream": True}).run()
        assert call.content.startswith(b"data: 1\n\n") and b"[DONE]" not in call.content
        last = call.content.decode().strip().splitlines()[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_timeout"
        await until(closed.exists, "the connection to the server is closed", 1.0)


async def test_a_bug_of_ours_is_told_without_its_details(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.world.model("a")

    async def broken(name: str, **_: Any) -> None:
        raise RuntimeError("the secret is 42")

    bench.world.manager.lease = broken  # type: ignore[method-assign, assignment]
    call = await bench.chat()
    assert (call.status, error_of(call)["code"]) == (500, "internal")
    assert "42" not in call.content.decode()
    assert "the secret is 42" in caplog.text
