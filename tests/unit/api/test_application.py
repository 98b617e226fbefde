"""The control plane over the fake server: shapes of answers and errors, probes, the metrics page, and the routes."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from orchestrator.api.document import operations
from tests import REPOSITORY
from tests.support.asgi import Call
from tests.unit.conftest import World, until


def problem_of(response: httpx.Response) -> dict[str, Any]:
    """The body of an error, whose shape must be RFC 9457's."""
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == response.status_code
    assert {"type", "title", "status", "code", "detail"} <= set(problem)
    return problem


async def test_probes(http: httpx.AsyncClient, api: FastAPI) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).status_code == 200
    api.state.context.is_open = False
    not_ready = await http.get("/readyz")
    assert not_ready.status_code == 503
    assert problem_of(not_ready)["code"] == "shutting_down"
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "method, path, body, status, code",
    [
        ("GET", "/nowhere", None, 404, "not_found"),
        ("GET", "/api/servers/nobody", None, 404, "model_not_found"),
        ("POST", "/api/servers/nobody/start", None, 404, "model_not_found"),
        ("DELETE", "/api/servers", None, 405, "method_not_allowed"),
        ("PUT", "/api/servers/a", {"flags": {"nonsense": 1}}, 422, "invalid_flag"),
        ("PUT", "/api/servers/a", {"sate": "running"}, 400, "invalid_request"),
        ("PUT", "/api/servers/a", {"state": "up"}, 400, "invalid_request"),
        ("PUT", "/api/servers/a", "{", 400, "invalid_request"),
        ("PUT", "/api/servers/a?dry_run=perhaps", {}, 400, "invalid_request"),
        ("POST", "/api/swap", {"start": "nobody"}, 404, "model_not_found"),
        ("POST", "/api/swap", {}, 400, "invalid_request"),
        ("POST", "/api/swap", {"start": "../x"}, 400, "invalid_request"),
        ("GET", "/api/servers/a/logs?tail=-1", None, 400, "invalid_request"),
    ],
)
async def test_errors_are_problems(
    http: httpx.AsyncClient, world: World, method: str, path: str, body: Any, status: int, code: str
) -> None:
    await world.model("a")
    content = None if body is None else body if isinstance(body, str) else json.dumps(body)
    response = await http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert problem_of(response)["code"] == code
    assert str(world.folder) not in response.text
    if status == 405:
        assert response.headers["allow"] == "GET"


async def test_a_bug_is_told_without_its_details(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(name: str) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(world.manager, "start", broken)
    response = await http.post("/api/servers/a/start")
    assert (response.status_code, problem_of(response)["code"]) == (500, "internal")
    assert "42" not in response.text


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


async def test_a_new_model_file_is_seen_everywhere_at_once(http: httpx.AsyncClient, world: World) -> None:
    (world.models_dir / "new.yaml").write_text('{"name": "new", "source": {"path": "new.gguf"}}')
    assert (await http.get("/api/servers/new")).status_code == 200
    (world.models_dir / "newer.yaml").write_text('{"name": "newer", "source": {"path": "new.gguf"}}')
    assert "newer" in (await http.get("/api/servers")).text


async def test_models_tell_what_is_there_and_what_is_wrong(http: httpx.AsyncClient, world: World) -> None:
    await world.model("a")
    await world.model("gone", {"source": {"path": "missing.gguf"}})
    (world.models_dir / "bad.yaml").write_text("name: bad\n")
    answer = (await http.get("/api/models")).json()
    assert {model["spec"]["name"]: model["present"] for model in answer["models"]} == {"a": True, "gone": False}
    assert [model["missing"] for model in answer["models"]] == [[], ["missing.gguf"]]
    assert [problem["file"] for problem in answer["problems"]] == ["bad.yaml"]
    assert (await http.get("/api/models/a")).json()["state"] == "stopped"


async def test_flags_say_why_some_are_refused(http: httpx.AsyncClient) -> None:
    flags = {flag["name"]: flag for flag in (await http.get("/api/flags")).json()}
    assert flags["ctx-size"]["refused"] is None
    assert "removed" in flags["draft"]["refused"] and flags["log-file"]["refused"]


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


def routes(api: FastAPI) -> set[tuple[str, str]]:
    found = operations(api.openapi())
    return {(method.upper(), path) for path, method, what in found if what["tags"] != ["inference"]}


def test_the_document_lists_exactly_our_routes(api: FastAPI) -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text()
    # What lies under /v1 is the gateway's: docs/gateway.md, held by tests/unit/gateway/test_routes.py.
    documented = set(re.findall(r"^\| `(\w+) (\S+)` \|", text, re.M))
    assert {row for row in documented if not row[1].startswith("/v1/")} == routes(api)


async def test_the_openapi_document_describes_every_field(http: httpx.AsyncClient) -> None:
    document = (await http.get("/api/openapi.json")).json()
    named = document["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in named.items()
        for field, what in schema.get("properties", {}).items()
        if "description" not in what and name not in ("HTTPValidationError", "ValidationError")
    ]
    assert bare == []
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())
