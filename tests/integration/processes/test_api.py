"""The control plane over processes of the fake server: lifecycle, logs, the metrics page."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from tests.support.asgi import Call
from tests.unit.conftest import World, until

pytestmark = pytest.mark.integration


async def test_lifecycle_over_http(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a", {"aliases": ["short"]})
    assert (await http.get("/api/servers")).json()["servers"][0]["state"] == "stopped"
    started = (await http.post("/api/servers/short/start")).json()
    assert (started["model"], started["state"], started["desired"]) == ("a", "ready", "running")
    plan = (await http.put("/api/servers/a?dry_run=true", json={"flags": {"ctx_size": 1}})).json()
    assert [action["do"] for action in plan["actions"]] == ["start", "stop"]
    assert (await http.get("/api/servers/a")).json() == started
    changed = (await http.put("/api/servers/a", json={"flags": {"ctx_size": 1}})).json()
    assert (changed["flags"], changed["restarts"]) == ({"ctx-size": 1}, 1)
    assert (await http.post("/api/servers/a/stop")).json()["state"] == "stopped"


async def test_every_verb_tells_what_it_would_do(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a")

    async def plan(verb: str) -> list[str]:
        answer = (await http.post(f"/api/servers/a/{verb}?dry_run=true")).raise_for_status().json()
        return [action["do"] for action in answer["actions"]]

    assert [await plan(v) for v in ("start", "stop", "restart")] == [["start"], ["keep"], ["start"]]
    assert world.starts("a") == []
    started = (await http.post("/api/servers/a/start")).json()
    assert [await plan(v) for v in ("start", "stop", "restart")] == [["keep"], ["stop"], ["start", "stop"]]
    assert (await http.get("/api/servers/a")).json() == started


async def test_the_log_can_be_read_and_followed(api: FastAPI, world: World) -> None:
    await world.model("a", lines=300)
    await world.manager.start("a")
    tail = await Call(api, "GET", "/api/servers/a/logs?tail=3&follow=false").run()
    assert tail.content.decode().count("event: line") == 3
    follow = Call(api, "GET", "/api/servers/a/logs?tail=10000")
    running = asyncio.create_task(follow.run())
    await until(lambda: follow.content.decode().count("event: line") == 301, "every line so far is there")
    world.manager.server("a").log.append("a new line")
    await until(lambda: "data: a new line" in follow.content.decode(), "the new line is there")
    assert follow.header("x-accel-buffering") == ["no"]
    world.manager.server("a").log.close()
    async with asyncio.timeout(5):
        await running


async def test_a_follower_that_leaves_is_forgotten(api: FastAPI, world: World) -> None:
    await world.model("a", lines=1)
    await world.manager.start("a")
    follow = Call(api, "GET", "/api/servers/a/logs")
    running = asyncio.create_task(follow.run())
    await until(lambda: follow.chunks, "it follows")
    follow.left.set()
    async with asyncio.timeout(5):
        await running
    await until(lambda: not world.manager.server("a").log._followers, "nobody follows")


class TestMetrics:
    async def test_a_server_that_hangs_does_not_hold_the_page(self, http: httpx.AsyncClient, world: World) -> None:
        hang = world.gate("hang")
        await world.model("hangs", metrics_hang=str(hang))
        await world.model("works", metrics='llamacpp:x_total 1\nllamacpp:slot_busy{slot="0"} 1\n')
        for name in ("hangs", "works"):
            await world.manager.start(name)
        hang.touch()
        loop = asyncio.get_running_loop()
        began = loop.time()
        page = (await http.get("/metrics")).text
        assert loop.time() - began < 1.5
        assert 'llamacpp:x_total{model="works"} 1.0' in page
        assert 'slipstream_slot_busy{model="works"' in page
        assert 'slipstream_server_up{model="hangs"} 1.0' in page
        assert 'slipstream_slot_busy{model="hangs"' not in page

    @pytest.mark.parametrize("garbage", ["<html>", "\0\xff{", "llamacpp:x_total{"])
    async def test_garbage_spoils_no_other_server(self, http: httpx.AsyncClient, world: World, garbage: str) -> None:
        await world.model("bad", metrics=garbage)
        await world.model("good", metrics="llamacpp:x_total 1\n")
        for name in ("bad", "good"):
            await world.manager.start(name)
        response = await http.get("/metrics")
        assert response.status_code == 200
        assert 'llamacpp:x_total{model="good"} 1.0' in response.text

    async def test_a_stopped_server_has_no_slots(self, http: httpx.AsyncClient, world: World) -> None:
        await world.model("a", metrics='llamacpp:slot_busy{slot="0"} 1\n')
        await world.manager.start("a")
        assert "slipstream_slot_busy{" in (await http.get("/metrics")).text
        await world.manager.stop("a")
        page = (await http.get("/metrics")).text
        assert "slipstream_slot_busy{" not in page
        assert 'slipstream_server_state{model="a",state="stopped"} 1.0' in page

    async def test_series_of_a_removed_model_vanish(self, http: httpx.AsyncClient, api: FastAPI, world: World) -> None:
        await world.model("a")
        api.state.context.requests.count("a", "ok")
        assert '"a"' in (await http.get("/metrics")).text
        (world.models_dir / "a.yaml").unlink()
        await world.manager.refresh()
        assert '"a"' not in (await http.get("/metrics")).text

    async def test_no_key_is_on_the_page(self, http: httpx.AsyncClient, world: World) -> None:
        await world.model("a")
        await world.manager.start("a")
        child = world.manager.server("a").child
        assert child is not None
        for path in ("/metrics", "/api/servers", "/api/models", "/api/flags", "/api/servers/a/logs?follow=false"):
            assert child.authorization.removeprefix("Bearer ") not in (await http.get(path)).text
