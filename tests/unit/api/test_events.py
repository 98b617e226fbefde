"""Transitions over HTTP: from where a follower left off, as they come, until the end."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.asgi import Call
from tests.unit.conftest import World, until


def told(call: Call) -> list[dict[str, Any]]:
    """What the events so far carry; each one's name and id must be right."""
    found = []
    for block in call.content.decode().replace("\r\n", "\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            event = json.loads(lines["data"])
            assert (lines["event"], lines["id"]) == ("transition", str(event["number"]))
            found.append(event)
    return found


async def kept(api: FastAPI, query: str = "", **headers: str) -> list[int]:
    call = Call(
        api, "GET", f"/api/events?follow=false{query}", headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    async with asyncio.timeout(5):
        await call.run()
    assert call.header("content-type")[0].startswith("text/event-stream")
    return [event["number"] for event in told(call)]


async def test_a_start_is_told_step_by_step(api: FastAPI, world: World) -> None:
    await world.model("a")
    call = Call(api, "GET", "/api/events")
    running = asyncio.create_task(call.run())
    await world.manager.start("a")
    await until(lambda: told(call) and told(call)[-1]["state"] == "ready", "it is told as ready")
    steps = told(call)
    assert [s["number"] for s in steps] == [*range(1, len(steps) + 1)]
    assert [s["state"] for s in steps if s["instance"] is not None][-3:] == ["loading", "warming", "ready"]
    assert all(s["why"] and s["model"] == "a" for s in steps)
    world.manager.begin_close()
    async with asyncio.timeout(5):
        await running
    assert call.ended


async def test_a_follower_goes_on_where_it_left_off(api: FastAPI, world: World) -> None:
    for number in range(1, 6):
        world.manager.scheduler.events.add("a", "loading", f"step {number}")
    assert await kept(api) == [1, 2, 3, 4, 5]
    assert await kept(api, "&after=3") == [4, 5]
    assert await kept(api, last_event_id="4") == [5]
    assert await kept(api, "&after=1", last_event_id="4") == [5]
    assert await kept(api, "&after=5") == []
    # Of an earlier run of the orchestrator.
    assert await kept(api, "&after=812") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("query", ["after=-1", "after=x", f"after={1 << 63}", "follow=perhaps"])
async def test_wrong_numbers_are_refused(http: httpx.AsyncClient, query: str) -> None:
    response = await http.get(f"/api/events?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")


async def test_a_follower_that_leaves_ends_its_stream(api: FastAPI, world: World) -> None:
    world.manager.scheduler.events.add("a", "loading", "because")
    call = Call(api, "GET", "/api/events")
    running = asyncio.create_task(call.run())
    await until(lambda: told(call), "it follows")
    call.left.set()
    async with asyncio.timeout(5):
        await running
