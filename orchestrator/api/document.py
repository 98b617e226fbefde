"""The OpenAPI document: FastAPI's, made complete."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from orchestrator.api.answers import errors
from orchestrator.api.data_plane import JSON, add_data_plane
from orchestrator.schemas import ErrorBody, Transition

_METHODS = ("get", "put", "post", "delete")
_DESCRIPTION = (
    "Serves models with speculative decoding behind one address. Errors under /api and of the probes are "
    "application/problem+json (RFC 9457); those of the data plane have OpenAI's shape, or Anthropic's. Every Host "
    "and Origin that is not allowed is refused with 403, every path but those of the probes and of the page for people "
    "at / needs a key where keys are set (401), an admin key outside the data plane and /metrics (403)."
)
_TAGS = [
    {"name": "models", "description": "The catalogue, and the files of its models."},
    {"name": "servers", "description": "Desired state, lifecycle, logs and slots of llama-servers."},
    {"name": "store", "description": "Files by content, grafts, GGUF headers."},
    {"name": "jobs", "description": "Long work."},
    {"name": "audit", "description": "Who changed what."},
    {"name": "probes", "description": "Probes and Prometheus."},
    {"name": "inference", "description": "llama-server's routes, by `model`."},
]
_SECURITY = {
    "admin_key": ("http", "An admin key; the only kind that opens /api and /slots."),
    "key": ("http", "An inference key or an admin key."),
    "admin_key_header": ("apiKey", "An admin key."),
    "key_header": ("apiKey", "An inference key or an admin key."),
}
_UNUSED = ("HTTPValidationError", "ValidationError")
_DEEPEST = 6


def document_of(api: FastAPI) -> dict[str, Any]:
    """The whole document, data plane included; made once."""
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title, version=api.version, description=_DESCRIPTION, tags=_TAGS, routes=api.routes
        )
        _add_components(document["components"])
        _add_itself(document, str(api.openapi_url))
        for path, _, operation in operations(document):
            _mend(path, operation)
        add_data_plane(document)
        _complete_examples(document["components"]["schemas"])
        api.openapi_schema = document
    return api.openapi_schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of every operation."""
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


def _add_components(components: dict[str, Any]) -> None:
    schemas = components["schemas"]
    for unused in _UNUSED:
        schemas.pop(unused, None)
    for model in (ErrorBody, Transition):
        schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas["JsonValue"] = {"description": "Any JSON value."}
    components["securitySchemes"] = {
        name: {"type": "http", "scheme": "bearer", "description": description}
        if kind == "http"
        else {"type": "apiKey", "in": "header", "name": "x-api-key", "description": description}
        for name, (kind, description) in _SECURITY.items()
    }


def _add_itself(document: dict[str, Any], path: str) -> None:
    schema = {"type": "object", "description": "An OpenAPI 3.1 document.", "additionalProperties": True}
    document["paths"][path] = {
        "get": {
            "tags": ["probes"],
            "summary": "This document.",
            "operationId": "get_document",
            "responses": {
                "200": {"description": "OpenAPI 3.1.", "content": {JSON: {"schema": schema}}},
                **{str(status): what for status, what in errors().items()},
            },
        }
    }


def _mend(path: str, operation: dict[str, Any]) -> None:
    """Security, and no 422 where FastAPI's own stands: what is not valid is a 400 here."""
    if path in ("/healthz", "/readyz"):
        operation["security"] = []
    else:
        name = "key" if path == "/metrics" else "admin_key"
        operation["security"] = [{name: []}, {f"{name}_header": []}]
    refused = operation["responses"].get("422", {}).get("content", {})
    if JSON in refused:
        del operation["responses"]["422"]


def _complete_examples(schemas: dict[str, Any]) -> None:
    """A field that is made of other schemas gets an example made of theirs."""
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            if "examples" not in field and (example := _example(field, schemas, _DEEPEST)) is not None:
                field["examples"] = [example]


def _example(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
    """One value of a schema, from the examples in it; None where it has none."""
    if depth < 0:
        return None
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if (example := _example(choice, schemas, depth)) is not None:
            return example
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("type") == "array":
        item = _example(schema.get("items", {}), schemas, depth - 1)
        return None if item is None else [item]
    if schema.get("type") == "object" and "properties" in schema:
        fields = {name: _example(field, schemas, depth - 1) for name, field in schema["properties"].items()}
        names = schema.get("required", fields)
        return {name: value for name, value in fields.items() if value is not None and name in names} or None
    return None
