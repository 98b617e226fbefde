"""Affinity from the outside: what a server hears of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.support.asgi import Call, post
from tests.support.backend import GatewayBench, gateway_bench
from tests.unit.conftest import until

CHAT = "/v1/chat/completions"


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    async with gateway_bench(keep_alive_seconds=0.02) as made:
        made.backend.launch.affinity = True
        yield made


async def asked(bench: GatewayBench, *texts: str, path: str = CHAT, **fields: Any) -> Call:
    messages = [{"role": "user", "content": text} for text in texts]
    return await post(bench.app, path, {"model": "a", "messages": messages, **fields}).run()


def slots(bench: GatewayBench) -> list[int | None]:
    return [json.loads(body).get("id_slot") for path, body in bench.backend.heard if "erase" not in path]


def paths(bench: GatewayBench) -> list[str]:
    return [path for path, _ in bench.backend.heard]


async def test_conversations_in_turns_keep_their_slots(bench: GatewayBench) -> None:
    for turn in (1, 2, 3):
        for name in "xyx":
            await asked(bench, *[name] * turn)
    assert slots(bench) == [0, 1, 0] * 3


async def test_a_model_without_affinity_hears_nothing_of_it(bench: GatewayBench) -> None:
    bench.backend.launch.affinity = False
    await asked(bench, "x")
    await asked(bench, "x", id_slot=1)
    assert slots(bench) == [None, 1]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages", "/v1/embeddings"])
async def test_routes_that_read_no_slot_are_not_given_one(bench: GatewayBench, path: str) -> None:
    await asked(bench, "x", path=path)
    assert slots(bench) == [None]


async def test_counting_tokens_costs_no_knowledge_and_embedding_does(bench: GatewayBench) -> None:
    await asked(bench, "x")
    await asked(bench, "x", path="/tokenize")
    await asked(bench, "y")
    await asked(bench, "x", "x2")
    assert slots(bench) == [0, None, 1, 0]
    await asked(bench, "z", path="/v1/messages")
    await asked(bench, "y", "y2")
    assert slots(bench)[-1] == 1, "the one that was used longest ago: what it holds is not known"


async def test_a_client_may_name_its_slot(bench: GatewayBench) -> None:
    await asked(bench, "x", id_slot=1)
    await asked(bench, "x", "x2")
    await asked(bench, "x", "x2", "x3", id_slot=-1)
    assert slots(bench) == [1, 1, 1], "llama-server's -1 is no wish"


async def test_a_request_that_was_refused_leaves_its_slot_as_it_was(bench: GatewayBench) -> None:
    await asked(bench, "x")
    handler = bench.backend.handler

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=400)

    bench.backend.handler = refuse
    await asked(bench, "x", "far too long")
    bench.backend.handler = handler
    await asked(bench, "x", "x2")
    assert slots(bench) == [0, 0, 0]


async def test_a_conversation_whose_answer_broke_off_goes_on_in_its_slot(bench: GatewayBench) -> None:
    handler = bench.backend.handler

    async def broken(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    await asked(bench, "x")
    bench.backend.handler = broken
    assert (await asked(bench, "y")).status == 502
    bench.backend.handler = handler
    await asked(bench, "y", "y2")
    assert slots(bench) == [0, 1, 1]


async def test_who_finds_no_free_slot_waits_and_is_told_so(bench: GatewayBench) -> None:
    release = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    bench.backend.handler = hold
    busy = [asyncio.create_task(asked(bench, name)) for name in "xy"]
    await until(lambda: len(bench.backend.heard) == 2, "both slots are busy")
    call = post(bench.app, CHAT, {"model": "a", "messages": [], "stream": True})
    waiting = asyncio.create_task(call.run())
    await until(lambda: b": waiting for 'a': a free slot" in call.content, "it is told")
    leaver = post(bench.app, CHAT, {"model": "a", "messages": []})
    leaving = asyncio.create_task(leaver.run())
    leaver.left.set()
    async with asyncio.timeout(1):
        await leaving
    assert len(bench.backend.heard) == 2
    release.set()
    await asyncio.gather(waiting, *busy)
    assert sorted(slot is not None for slot in slots(bench)) == [True] * 3
    assert len(bench.backend.leases) == bench.backend.released


class TestErasing:
    @pytest.fixture
    async def bench(self, bench: GatewayBench) -> GatewayBench:
        bench.backend.launch.erases = True
        return bench

    async def test_comes_before_what_does_not_go_on(self, bench: GatewayBench) -> None:
        await asked(bench, "x")
        await asked(bench, "x", "x2")
        await asked(bench, "y", id_slot=0)
        erase = "/slots/0?action=erase"
        assert paths(bench) == [erase, CHAT, CHAT, erase, CHAT]

    async def test_that_fails_is_told_in_the_log_alone(
        self, bench: GatewayBench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def no_erase(request: web.Request) -> web.StreamResponse:
            return web.json_response({}, status=501 if request.path.startswith("/slots") else 200)

        bench.backend.handler = no_erase
        assert (await asked(bench, "x")).status == 200
        assert "slot 0 of 'a' could not be emptied: 501" in caplog.text
        assert paths(bench) == ["/slots/0?action=erase", CHAT]
