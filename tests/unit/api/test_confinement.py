"""No request field that is a path, or becomes part of one, leads out of the folders of Slipstream."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from orchestrator.schemas import (
    AddRequest,
    BenchPut,
    Graft,
    GraftRequest,
    HfSource,
    InspectRequest,
    ModelSpec,
    OllamaSource,
    PathSource,
    PypiSource,
    ServerPut,
    SwapRequest,
    UrlSource,
    VerifyRequest,
)
from tests.support.scripted import write_script
from tests.unit.api.test_application import problem_of
from tests.unit.conftest import World

SHA = "0" * 64
INSIDE = {"path": "a.gguf"}
# Fields of requests that are paths or become part of one, and those that are neither. A new field has to be put into
# one of them, and into the tests below when it is a path.
PATHS = {
    *("PathSource.path", "HfSource.hf", "HfSource.file", "HfSource.revision", "PypiSource.pypi", "PypiSource.file"),
    *("OllamaSource.ollama", "UrlSource.url", "AddRequest.origin", "AddRequest.name", "AddRequest.drafter"),
    *("ModelSpec.name", "ModelSpec.aliases", "ModelSpec.server", "ServerPut.flags", "SwapRequest.flags"),
    *("SwapRequest.start", "SwapRequest.stop", "VerifyRequest.models"),
}
SOURCES = {"ModelSpec.source", "ModelSpec.drafter", "ModelSpec.graft", "Graft.donor", "GraftRequest.base"}
SOURCES |= {"GraftRequest.donor", "InspectRequest.source"}
NO_PATHS = {
    *("PypiSource.sha256", "UrlSource.sha256", "OllamaSource.layer", "ServerPut.state", "InspectRequest.ctx_tokens"),
    *("ModelSpec.speculation", "ModelSpec.defaults", "ModelSpec.keep", "ModelSpec.limits", "ModelSpec.place"),
    *("ModelSpec.slots", "BenchPut.launch", "BenchPut.rounds"),
}
REQUESTS = (
    *(AddRequest, Graft, GraftRequest, HfSource, InspectRequest, ModelSpec, OllamaSource, PathSource, PypiSource),
    *(BenchPut, ServerPut, SwapRequest, UrlSource, VerifyRequest),
)


def hf(file: str = "x.gguf", **fields: Any) -> dict[str, Any]:
    return {"hf": "o/n", "file": file} | fields


def pypi(file: str = "x.gguf", **fields: Any) -> dict[str, Any]:
    return {"pypi": "p==1", "file": file, "sha256": SHA} | fields


# `OUT` is an absolute path of a file outside, `UP` a relative one.
OUTSIDE = [{"path": "OUT"}, {"path": "UP"}, {"path": "sub/../UP"}, {"path": "~/x.gguf"}, {"path": "//OUT"}]
NO_SOURCES = [
    *(hf("../x"), hf("a/../../x"), hf("/etc/passwd"), hf("a\\..\\x"), hf("a\0b"), hf(".."), hf(revision="../../x")),
    *(hf(revision="/x"), hf(hf="../n"), hf(hf="o/.."), hf(hf="o/n/../../x"), hf(hf="/o/n")),
    *(
        pypi("../x"),
        pypi("/etc/passwd"),
        pypi(pypi="../p==1"),
        pypi(pypi="p==1/../../x"),
        pypi(pypi="--index-url=x==1"),
    ),
    *({"url": "file:///etc/passwd"}, {"url": "ftp://h/x"}, {"url": "/etc/passwd"}, {"url": "http:///etc/passwd"}),
    *({"ollama": "../../x"}, {"ollama": "/etc/passwd"}, {"ollama": "a/../../../x:y"}, {"ollama": "a:../../x"}),
    {"ollama": "h:1/../x:y"},
]
NAMES = ["../x", "..", ".", "a/b", "/etc/passwd", "a\\b", "a\0b", "%2e%2e", "", "x" * 64, "~root", "-rf"]
FLAGS = ["log-file", "model", "m", "slot-save-path", "api-key-file", "lora", "grammar-file", "ssl-key-file", "path"]


@pytest.fixture
async def outside(world: World, tmp_path: Path) -> dict[str, str]:
    """A model in its place, and a GGUF that nobody may read over the API."""
    await world.model("a")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    write_script(folder / "secret.gguf", {})
    return {"OUT": str(folder / "secret.gguf"), "UP": "../elsewhere/secret.gguf"}


def placed(value: Any, outside: dict[str, str]) -> Any:
    text = json.dumps(value)
    for word, path in outside.items():
        text = text.replace(word, path)
    return json.loads(text)


def requests_with(source: Any) -> list[tuple[str, str, Any]]:
    """Every request that takes a source, with this one in every place."""
    base = {"name": "b", "source": INSIDE}
    return [
        ("PUT", "/api/models/b", base | {"source": source}),
        ("PUT", "/api/models/b", base | {"drafter": source}),
        ("PUT", "/api/models/b", base | {"graft": {"donor": source}}),
        *(("POST", path, {"base": source, "donor": INSIDE}) for path in ("/api/grafts", "/api/grafts/plan")),
        *(("POST", path, {"base": INSIDE, "donor": source}) for path in ("/api/grafts", "/api/grafts/plan")),
        ("POST", "/api/gguf/inspect", {"source": source}),
    ]


def files(folder: Path) -> dict[Path, int]:
    """Files below a folder with their times, but for those of the database."""
    found = [p for p in folder.rglob("*") if p.is_file() and "state" not in p.relative_to(folder).parts]
    return {path: path.stat().st_mtime_ns for path in found}


def test_every_field_is_accounted_for() -> None:
    fields = {f"{model.__name__}.{field}" for model in REQUESTS for field in model.model_fields}
    assert fields == PATHS | SOURCES | NO_PATHS


def test_every_request_schema_is_accounted_for(api: FastAPI) -> None:
    taken = {
        str(content["schema"]["$ref"]).rpartition("/")[2]
        for item in api.openapi()["paths"].values()
        for operation in item.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }
    assert taken == {
        *("AddRequest", "GraftRequest", "InspectRequest", "ModelSpec", "ServerPut", "SwapRequest", "VerifyRequest"),
        "BenchPut",
        # Read for `model` alone, and passed on to a server whose own paths are fixed.
        "InferenceRequest",
    }


@pytest.mark.parametrize("source", OUTSIDE, ids=str)
async def test_a_path_outside_is_refused(
    http: httpx.AsyncClient, world: World, outside: dict[str, str], source: Any
) -> None:
    before = files(world.folder)
    for method, path, body in requests_with(placed(source, outside)):
        response = await http.request(method, path, json=body)
        assert (response.status_code, problem_of(response)["code"]) == (403, "forbidden"), (method, path, body)
        assert "qwen" not in response.text and str(world.folder / "cache") not in response.text
    assert files(world.folder) == before


@pytest.mark.parametrize("source", NO_SOURCES, ids=str)
async def test_a_source_that_would_lead_out_is_none(
    http: httpx.AsyncClient, world: World, outside: dict[str, str], source: Any
) -> None:
    before = files(world.folder)
    for method, path, body in requests_with(source):
        response = await http.request(method, path, json=body)
        assert (response.status_code, problem_of(response)["code"]) == (400, "invalid_request"), (method, path, body)
    assert files(world.folder) == before


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_no_path(http: httpx.AsyncClient, world: World, outside: dict[str, str], name: str) -> None:
    before = files(world.folder)
    bodies: list[tuple[str, str, Any]] = [
        ("POST", "/api/models", {"origin": "ollama:x", "name": name}),
        ("PUT", "/api/models/b", {"name": name, "source": INSIDE}),
        ("PUT", "/api/models/b", {"name": "b", "source": INSIDE, "aliases": [name]}),
        ("POST", "/api/swap", {"start": name}),
        ("POST", "/api/swap", {"start": "a", "stop": [name]}),
    ]
    for method, path, body in bodies:
        response = await http.request(method, path, json=body)
        assert (response.status_code, problem_of(response)["code"]) == (400, "invalid_request"), (method, path, body)
    unknown = await http.post("/api/store/verify", json={"models": [name]})
    assert problem_of(unknown)["code"] == "model_not_found"
    for method, path in (
        *(("GET", "/api/models/{}"), ("DELETE", "/api/models/{}"), ("POST", "/api/models/{}/pull")),
        *(("GET", "/api/servers/{}"), ("GET", "/api/servers/{}/logs?follow=false"), ("POST", "/api/servers/{}/start")),
        *(("GET", "/api/servers/{}/slots"), ("GET", "/slots?model={}"), ("GET", "/api/jobs/{}")),
    ):
        if name in ("", ".", ".."):
            continue
        response = await http.request(method, path.format(quote(name, safe="")))
        assert response.status_code in (404, 405), (method, path, response.text)
    assert files(world.folder) == before


@pytest.mark.parametrize(
    "origin",
    [
        "ollama:../../x",
        "ollama:/etc/passwd",
        "hf:../n",
        "hf:o/n:../../etc/passwd",
        "hf:o/n@../x",
        "/etc/passwd",
        "path:x",
    ],
)
async def test_an_origin_is_no_path(
    http: httpx.AsyncClient, world: World, outside: dict[str, str], origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(world.folder / "ollama"))
    before = files(world.folder)
    response = await http.post("/api/models", json={"origin": origin})
    assert (response.status_code, problem_of(response)["code"]) == (400, "invalid_request")
    assert files(world.folder) == before


@pytest.mark.parametrize("flag", FLAGS)
async def test_a_flag_that_reads_or_writes_a_file_is_refused(
    http: httpx.AsyncClient, world: World, outside: dict[str, str], flag: str
) -> None:
    flags = {flag: outside["OUT"]}
    for response in (
        await http.put("/api/servers/a", json={"flags": flags}),
        await http.put("/api/servers/a?dry_run=true", json={"flags": flags}),
        await http.post("/api/swap", json={"start": "a", "flags": flags}),
    ):
        assert (response.status_code, problem_of(response)["code"]) == (422, "invalid_flag")
    await world.model("b", {"server": flags})
    refused = await http.post("/api/servers/b/start")
    assert (refused.status_code, problem_of(refused)["code"]) == (422, "invalid_flag")
    assert world.starts("a") == world.starts("b") == []
