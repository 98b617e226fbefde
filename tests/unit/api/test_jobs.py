"""Jobs over HTTP: answers, the stream of events, a cancel."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from orchestrator.api import Context, Trail, build_api
from orchestrator.servers import Benches, Cataloguing, Supply
from orchestrator.settings import Settings
from orchestrator.telemetry import Requests
from tests import REPOSITORY
from tests.support.asgi import Call
from tests.unit.api.test_application import problem_of
from tests.unit.conftest import World, until
from tests.unit.jobs.conftest import Bench, opened


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    async with opened(tmp_path / "jobs") as bench:
        yield bench


@pytest.fixture
def api(world: World, bench: Bench) -> FastAPI:
    supply, cataloguing = Supply(world.manager, bench.jobs), Cataloguing(world.manager)
    context = Context(
        Settings(),
        world.manager,
        supply,
        cataloguing,
        bench.jobs,
        world.client,
        Requests(),
        Trail(world.database),
        Benches(world.database, world.manager, world.wanted),
        is_open=True,
    )
    return build_api(context)


@pytest.fixture
async def http(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def events(call: Call) -> list[tuple[str, str | None, Any]]:
    """Name, id and data of the events so far."""
    found = []
    for block in call.content.decode().split("\r\n\r\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\r\n") if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


async def test_the_list_and_one(http: httpx.AsyncClient, bench: Bench) -> None:
    assert (await http.get("/api/jobs")).json() == {"jobs": []}
    first, second = await bench.end(result={"n": 1}), await bench.end(["fail", "disk_full", "full"])
    listed = (await http.get("/api/jobs")).json()["jobs"]
    assert [job["id"] for job in listed] == [second.id, first.id]
    one = (await http.get(f"/api/jobs/{first.id}")).json()
    assert one == listed[1]
    assert (one["kind"], one["subject"], one["state"], one["result"]) == ("toy", "a toy", "succeeded", {"n": 1})
    assert "request" not in one and "key" not in one
    assert listed[0]["error"] == {"code": "disk_full", "message": "full", "hint": None, "details": {}}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/jobs/1a"), ("DELETE", "/api/jobs/1a"), ("GET", "/api/jobs/1a/events")]
)
async def test_who_is_not_there(http: httpx.AsyncClient, method: str, path: str) -> None:
    response = await http.request(method, path)
    assert (response.status_code, problem_of(response)["code"]) == (404, "not_found")


async def test_a_cancel_answers_with_the_end(http: httpx.AsyncClient, bench: Bench) -> None:
    job = await bench.submit(["ignore_term"], ["touch", bench.path("runs")], bench.wait("never"))
    await until((bench.folder / "runs").exists, "it runs")
    async with asyncio.timeout(1):
        response = await http.delete(f"/api/jobs/{job.id}")
    assert (response.status_code, response.json()["state"]) == (200, "cancelled")
    assert (await http.delete(f"/api/jobs/{job.id}")).json() == response.json()


async def test_events_for_a_late_subscriber(api: FastAPI, bench: Bench) -> None:
    job = await bench.submit(["line", "one"], ["line", "two"], ["phase", "fetching", 9], bench.wait("go"))
    await until(lambda: bench.jobs.get(job.id).progress, "it is well on its way")
    follow = Call(api, "GET", f"/api/jobs/{job.id}/events")
    running = asyncio.create_task(follow.run())
    await until(lambda: len(events(follow)) >= 3, "it is told what was")
    assert [(name, number) for name, number, _ in events(follow)[:3]] == [("job", None), ("line", "1"), ("line", "2")]
    assert events(follow)[0][2]["progress"]["phase"] == "fetching"
    bench.open_gate("go")
    async with asyncio.timeout(5):
        await running
    name, number, data = events(follow)[-1]
    assert (name, number, data["state"]) == ("end", None, "succeeded")
    assert follow.header("x-accel-buffering") == ["no"]
    assert follow.header("content-type")[0].startswith("text/event-stream")


@pytest.mark.parametrize(("given", "numbers"), [("0", ["1", "2", "3"]), ("2", ["3"]), ("3", []), ("99", [])])
async def test_lines_begin_after_the_last_one_known(api: FastAPI, bench: Bench, given: str, numbers: list[str]) -> None:
    job = await bench.end(["lines", 3])
    follow = await Call(api, "GET", f"/api/jobs/{job.id}/events", headers={"Last-Event-ID": given}).run()
    assert [number for name, number, _ in events(follow) if name == "line"] == numbers


@pytest.mark.parametrize("given", ["x", "-1", "1.5", str(1 << 63)])
async def test_a_last_event_that_is_none(http: httpx.AsyncClient, given: str) -> None:
    response = await http.get("/api/jobs/1a/events", headers={"Last-Event-ID": given})
    assert problem_of(response)["code"] == "invalid_request"


async def test_a_shutdown_closes_streams_without_an_end(api: FastAPI, bench: Bench) -> None:
    job = await bench.submit(bench.wait("never"))
    follow = Call(api, "GET", f"/api/jobs/{job.id}/events")
    running = asyncio.create_task(follow.run())
    await until(lambda: events(follow), "it follows")
    bench.jobs.begin_close()
    async with asyncio.timeout(5):
        await running
    assert "end" not in [name for name, _, _ in events(follow)]
