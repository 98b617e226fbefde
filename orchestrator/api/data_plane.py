"""What the document says of the gateway's routes. Their bodies are llama-server's own and pass as they are."""

from typing import Any

from orchestrator.api.answers import NOT_PLANNED, Answers, errors_as
from orchestrator.errors import Code
from orchestrator.gateway.dialects import Dialect
from orchestrator.gateway.reply import SSE
from orchestrator.gateway.routes import MODEL_LISTS, ROUTES, Route, Work

JSON = "application/json"
_FORM = "multipart/form-data"
_KEYS: list[dict[str, list[str]]] = [{"key": []}, {"key_header": []}]
_DOOR = (Code.INVALID_REQUEST, Code.UNAUTHORIZED, Code.FORBIDDEN, Code.INTERNAL)
_ERRORS = (
    *_DOOR,
    Code.MODEL_NOT_FOUND,
    Code.REQUEST_TOO_LARGE,
    *NOT_PLANNED,
    Code.QUEUE_FULL,
    Code.UPSTREAM_FAILED,
    Code.HOST_FAILED,
    Code.SERVER_START_FAILED,
    Code.SERVER_STOPPED,
    Code.QUARANTINED,
    Code.WAIT_TIMEOUT,
    Code.NO_ROOM,
    Code.DRAINED,
    Code.SHUTTING_DOWN,
    Code.UPSTREAM_TIMEOUT,
)
_DOES = {
    Work.GENERATE: "Generate. A server that is down is started; with `stream: true` the answer is an event stream.",
    Work.EMBED: "Embed or rank. A server that is down is started.",
    Work.COUNT: "Tokenize or apply a template. A server that is down is started.",
}
_MODEL = {
    "type": "string",
    "description": "Name or alias of a model; it may be left out where there is only one.",
    "examples": ["smollm2-135m"],
}
_SCHEMAS: dict[str, Any] = {
    "InferenceRequest": {
        "type": "object",
        "title": "InferenceRequest",
        "description": "What llama-server takes at this route; only `model` is read on the way.",
        "properties": {"model": _MODEL},
        "additionalProperties": True,
    },
    "InferenceAnswer": {
        "type": "object",
        "title": "InferenceAnswer",
        "description": "What llama-server answers at this route, byte for byte.",
        "additionalProperties": True,
    },
    "InferenceError": {
        "type": "object",
        "title": "InferenceError",
        "description": "An error in the shape of the route's API: OpenAI's, or Anthropic's under /v1/messages.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "description": "What was wrong; `message` and `type` are always there.",
                "required": ["message", "type"],
                "additionalProperties": True,
                "examples": [{"message": "there is no model 'x'", "type": "invalid_request_error", "param": None}],
            }
        },
        "additionalProperties": True,
    },
    "ListedModel": {
        "type": "object",
        "title": "ListedModel",
        "description": "A name that clients may send, and how its server is.",
        "required": ["id", "object", "created", "owned_by", "root", "state", "status"],
        "properties": {
            "id": {"type": "string", "description": "The name or alias.", "examples": ["smollm2"]},
            "object": {"type": "string", "description": "Always `model`.", "examples": ["model"]},
            "created": {"type": "integer", "description": "Always 0.", "examples": [0]},
            "owned_by": {"type": "string", "description": "Always `slipstream`.", "examples": ["slipstream"]},
            "root": {"type": "string", "description": "Name of the model.", "examples": ["smollm2-135m"]},
            "state": {"type": "string", "description": "State of its server.", "examples": ["ready"]},
            "status": {
                "type": "object",
                "description": "The same in the words of llama-server's router mode, as `value`: "
                "loaded, loading, unloaded, failed.",
                "examples": [{"value": "loaded"}],
            },
        },
    },
    "ListedModels": {
        "type": "object",
        "title": "ListedModels",
        "description": "Every name that clients may send.",
        "required": ["object", "data"],
        "properties": {
            "object": {"type": "string", "description": "Always `list`.", "examples": ["list"]},
            "data": {
                "type": "array",
                "description": "By name.",
                "items": {"$ref": "#/components/schemas/ListedModel"},
            },
        },
    },
}


def add_data_plane(document: dict[str, Any]) -> None:
    """Put the gateway's routes and their schemas into a document."""
    document["components"]["schemas"] |= _SCHEMAS
    for path, route in ROUTES.items():
        document["paths"][path] = {"post": _inference(path, route)}
    for path in MODEL_LISTS:
        document["paths"][path] = {"get": _listing(path, "ListedModels", "Every model and alias, with its state.", [])}
        name = {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "Name or alias of a model.",
            "schema": {"type": "string", "examples": ["smollm2-135m"]},
        }
        one = _listing(f"{path}/name", "ListedModel", "One of them.", [name])
        document["paths"][f"{path}/{{name}}"] = {"get": one}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _refused(codes: tuple[Code, ...]) -> Answers:
    answers = errors_as({JSON: {"schema": _ref("InferenceError")}}, codes)
    return {str(status): what for status, what in answers.items()}


def _inference(path: str, route: Route) -> dict[str, Any]:
    kind = _FORM if route.is_form else JSON
    content: dict[str, Any] = {JSON: {"schema": _ref("InferenceAnswer")}}
    if route.work is Work.GENERATE:
        events = {"type": "object", "description": "One event of llama-server's; comments come while it waits."}
        content[SSE.decode()] = {"schema": events, "example": "data: [DONE]\n\n"}
    dialect = "Anthropic's shape" if route.dialect is Dialect.ANTHROPIC else "OpenAI's shape"
    return {
        "tags": ["inference"],
        "summary": f"llama-server's {route.upstream}",
        "description": f"{_DOES[route.work]} Errors have {dialect}; what llama-server refuses keeps its status.",
        "operationId": _id("post", path),
        "security": _KEYS,
        "requestBody": {"required": True, "content": {kind: {"schema": _ref("InferenceRequest")}}},
        "responses": {
            "200": {"description": "llama-server's answer.", "content": content},
            **_refused(_ERRORS),
            "501": {
                "description": "Error of llama-server: the model or its flags do not do this.",
                "content": {JSON: {"schema": _ref("InferenceError")}},
            },
        },
    }


def _listing(path: str, schema: str, summary: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    codes = (*_DOOR, Code.MODEL_NOT_FOUND) if parameters else _DOOR
    return {
        "tags": ["inference"],
        "summary": summary,
        "operationId": _id("get", path),
        "security": _KEYS,
        "parameters": parameters,
        "responses": {
            "200": {"description": summary, "content": {JSON: {"schema": _ref(schema)}}},
            **_refused(codes),
        },
    }


def _id(method: str, path: str) -> str:
    return "_".join((method, *path.replace("-", "_").strip("/").split("/")))
