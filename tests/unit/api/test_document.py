"""The OpenAPI document is complete, valid, and right about itself."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import jsonschema_rs
import pytest
import schemathesis

from orchestrator.api import Context, build_api
from orchestrator.api.document import operations
from orchestrator.gateway import DATA_PATHS
from orchestrator.gateway.routes import ROUTES

Json = dict[str, Any]
PROBLEM, JSON, STREAM = "application/problem+json", "application/json", "text/event-stream"
STREAMS = {"/api/events", "/api/jobs/{id}/events", "/api/servers/{model}/logs"}
UNITS = {
    "seconds": ("second", "never a"),
    "bytes": ("byte", "size", "memory", "tensors", "keys and values", "state of", "all of it"),
    "tokens": ("token", "context"),
}


@pytest.fixture(scope="module")
def document() -> Json:
    # Nothing that answers requests has a part in it.
    return build_api(cast(Context, SimpleNamespace(audit=None))).openapi()


def fields(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Schema, field and its own schema, of every schema and every body."""
    for name, schema in document["components"]["schemas"].items():
        for field, what in schema.get("properties", {}).items():
            yield name, field, what
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            for content in answer.get("content", {}).values():
                for field, what in content.get("schema", {}).get("properties", {}).items():
                    yield f"{method} {path} {status}", field, what


def test_it_is_valid(document: Json) -> None:
    assert document["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(document).validate()
    broken = document | {"paths": {"/x": {"get": {"responses": 7}}}}
    with pytest.raises(Exception, match="not of type"):
        schemathesis.openapi.from_dict(broken).validate()


def test_every_field_is_described_with_an_example(document: Json) -> None:
    found = list(fields(document))
    assert len(found) > 150
    bare = [(name, field) for name, field, what in found if not what.get("description")]
    without = [(name, field) for name, field, what in found if not what.get("examples")]
    assert bare == [] and without == []


def test_every_schema_is_described(document: Json) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description")] == []


def test_every_example_is_one(document: Json) -> None:
    wrong = []
    for name, field, what in fields(document):
        validator = jsonschema_rs.Draft202012Validator({"components": document["components"]} | what)
        wrong += [(name, field, e.message) for v in what["examples"] for e in validator.iter_errors(v)]
    assert wrong == []


def test_names_with_units_say_them(document: Json) -> None:
    silent = [
        (name, field)
        for name, field, what in fields(document)
        for unit, words in UNITS.items()
        if field.endswith(f"_{unit}") and not any(word in what["description"].lower() for word in words)
    ]
    assert silent == []


def test_every_operation_is_described(document: Json) -> None:
    ids, tags = set(), {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        assert operation["summary"] and set(operation["tags"]) <= tags, path
        assert "security" in operation and operation["operationId"] not in ids, (method, path)
        ids.add(operation["operationId"])
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (method, path, parameter["name"])
        for status, answer in operation["responses"].items():
            assert answer["description"], (method, path, status)


def test_every_answer_has_its_media_type(document: Json) -> None:
    for path, method, operation in operations(document):
        is_data = operation["tags"] == ["inference"]
        for status, answer in operation["responses"].items():
            kinds = set(answer.get("content", {}))
            if int(status) >= 400:
                assert kinds == {JSON if is_data else PROBLEM}, (method, path, status)
            elif path in STREAMS:
                assert kinds == {STREAM}, path
            elif path == "/metrics":
                assert kinds == {"text/plain"}
            elif status != "204":
                assert JSON in kinds, (method, path, status)
        needed = {"400", "403"} if path in ("/healthz", "/readyz") else {"400", "401", "403"}
        assert needed <= set(operation["responses"]), (method, path)


def test_keys_are_said(document: Json) -> None:
    schemes = document["components"]["securitySchemes"]
    for path, _, operation in operations(document):
        names = [name for choice in operation["security"] for name in choice]
        assert set(names) <= set(schemes)
        if path in ("/healthz", "/readyz"):
            assert names == []
        elif path == "/metrics" or operation["tags"] == ["inference"]:
            assert names == ["key", "key_header"], path
        else:
            assert names == ["admin_key", "admin_key_header"], path


def test_the_data_plane_is_in_it(document: Json) -> None:
    assert set(document["paths"]) >= DATA_PATHS
    for path, route in ROUTES.items():
        body = document["paths"][path]["post"]["requestBody"]
        assert set(body["content"]) == {"multipart/form-data" if route.is_form else JSON}
    assert "model" in document["components"]["schemas"]["InferenceRequest"]["properties"]


def test_nothing_of_the_framework_is_left(document: Json) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])
    assert "default" not in {s for _, _, operation in operations(document) for s in operation["responses"]}
