"""The catalogue over HTTP: hostile bodies, requests that are sent again, changes at the same time."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from orchestrator.api.body_limit import MAX_BODY_BYTES
from orchestrator.schemas import AddRequest, ModelSpec
from orchestrator.servers import ModelFiles, cataloguing
from tests.unit.api.test_application import problem_of
from tests.unit.conftest import World

JSON = {"content-type": "application/json"}


def body(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "source": {"path": "a.gguf"}} | fields


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "a", "source": {"path": "a\\u0000b.gguf"}}',
        '{"name": "a", "source": {"path": "a.gguf"}, "defaults": {"x": "\\ud800"}}',
        '{"name": "a", "source": {"path": "a.gguf"}, "defaults": {"\\ud800": 1}}',
        '{"name": "a", "source": {"path": "a.gguf"}, "defaults": {"x": NaN}}',
        '{"name": "a", "source": {"path": "a.gguf"}, "server": {"x": 1e999}}',
        '{"name": "a", "source": {"path": "a.gguf"}, "server": {"x": "\\ud800"}}',
        '{"name": "a", "source": {"url": "https://h/\\u0000"}}',
        f'{{"name": "a", "source": {{"hf": "o/n", "file": "{"x" * 256}"}}}}',
        f'{{"name": "a", "source": {{"path": "a.gguf"}}, "defaults": {{"x": {"[" * 500}{"]" * 500}}}}}',
        "[" * 100_000,
    ],
    ids=str,
)
async def test_what_no_model_file_can_hold_leaves_no_trace(http: httpx.AsyncClient, world: World, content: str) -> None:
    response = await http.put("/api/models/a", content=content, headers=JSON)
    assert (response.status_code, problem_of(response)["code"]) == (400, "invalid_request")
    assert list(world.models_dir.iterdir()) == []
    for method, path in (("GET", "/api/models"), ("GET", "/api/store"), ("POST", "/api/store/gc")):
        assert (await http.request(method, path)).status_code == 200


@pytest.mark.parametrize("chunks", [1, 64])
async def test_a_body_beyond_the_limit_is_refused(http: httpx.AsyncClient, world: World, chunks: int) -> None:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(chunks):
            yield b" " * (2 * MAX_BODY_BYTES // chunks)

    response = await http.put("/api/models/a", content=content(), headers=JSON)
    assert (response.status_code, problem_of(response)["code"]) == (413, "request_too_large")


async def test_a_body_up_to_the_limit_is_read(http: httpx.AsyncClient, world: World) -> None:
    padded = json.dumps(body()).ljust(MAX_BODY_BYTES)
    assert (await http.put("/api/models/a", content=padded, headers=JSON)).status_code == 200


@pytest.mark.parametrize("path", ["x" * 300, "x/" * 1000 + "x", "."])
async def test_a_path_that_cannot_be_is_a_missing_file(http: httpx.AsyncClient, world: World, path: str) -> None:
    source = {"path": path}
    inspected = await http.post("/api/gguf/inspect", json={"source": source})
    assert (inspected.status_code, problem_of(inspected)["code"]) == (404, "source_not_found")
    assert (await http.put("/api/models/a", json=body(source=source))).json()["present"] is False
    assert (await http.post("/api/servers/a/start")).status_code == 409
    assert (await http.get("/api/store")).status_code == 200


async def test_a_model_that_goes_while_the_disk_is_looked_at_spoils_no_list(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await world.model(name)
    missing, loop = ModelFiles.missing, asyncio.get_running_loop()

    def slow(files: ModelFiles, spec: ModelSpec) -> tuple[str, ...]:
        (world.models_dir / "a.yaml").unlink(missing_ok=True)
        asyncio.run_coroutine_threadsafe(world.manager.refresh(), loop).result(10)
        return missing(files, spec)

    monkeypatch.setattr(ModelFiles, "missing", slow)
    answer = await http.get("/api/models")
    assert answer.status_code == 200, answer.text
    assert [model["spec"]["name"] for model in answer.json()["models"]] == ["a", "b"]


async def test_an_addition_may_be_sent_again(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(_: object, request: AddRequest) -> tuple[ModelSpec, tuple[str, ...]]:
        return ModelSpec.model_validate(body(name=request.name)), ("a note",)

    monkeypatch.setattr(cataloguing, "_from_ollama", found)
    request = {"origin": "ollama:x", "name": "a"}
    first = await http.post("/api/models", json=request)
    again = await http.post("/api/models", json=request)
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    (world.models_dir / "a.yaml").write_text(json.dumps(body(defaults={"temperature": 1})))
    changed = await http.post("/api/models", json=request)
    assert (changed.status_code, problem_of(changed)["code"]) == (409, "conflict")


async def test_every_parameter_is_described(http: httpx.AsyncClient) -> None:
    document = (await http.get("/api/openapi.json")).json()
    bare = [
        (path, parameter["name"])
        for path, operations in document["paths"].items()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert bare == []
    answers = document["paths"]["/api/models"]["post"]["responses"]
    assert {"200", "201", "400", "401", "403", "409", "422", "500"} <= set(answers)
    error = answers["409"]["content"]["application/problem+json"]["schema"]
    assert error == {"$ref": "#/components/schemas/ErrorBody"}
    named = document["components"]["schemas"]["ErrorBody"]["properties"]
    assert {"type", "title", "status", "code", "detail", "hint"} == set(named)
