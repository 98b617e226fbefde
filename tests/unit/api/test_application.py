"""The control plane over the fake server: shapes of answers and errors, probes, the metrics page, and the routes."""

import json
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from orchestrator.api.document import operations
from orchestrator.servers import Missing
from tests import REPOSITORY
from tests.unit.conftest import World


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


async def test_without_an_accelerator_that_is_expected_it_is_not_ready(http: httpx.AsyncClient, api: FastAPI) -> None:
    api.state.context.missing = (Missing("no GPU: why", "what to do"), Missing("another"))
    for _ in range(2):
        not_ready = await http.get("/readyz")
        problem = problem_of(not_ready)
        assert (not_ready.status_code, problem["code"]) == (503, "no_accelerator")
        assert (problem["detail"], problem["hint"]) == ("no GPU: why", "what to do")
    assert (await http.get("/healthz")).status_code == (await http.get("/api/servers")).status_code == 200


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


def routes(api: FastAPI) -> set[tuple[str, str]]:
    found = operations(api.openapi())
    return {(method.upper(), path) for path, method, what in found if what["tags"] != ["inference"]}


def test_the_document_lists_exactly_our_routes(api: FastAPI) -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text()
    # What lies under /v1 is the gateway's: docs/gateway.md, held by tests/unit/gateway/test_routes.py.
    documented = set(re.findall(r"^\| `(\w+) (\S+)` \|", text, re.M))
    page = ("GET", "/")
    assert {row for row in documented if not row[1].startswith("/v1/")} == routes(api) | {page}


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
