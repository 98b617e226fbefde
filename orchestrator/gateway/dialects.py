"""The two shapes an error has on the data plane, as a whole answer and as an event that ends a stream."""

import json
from enum import StrEnum
from typing import Any

from orchestrator.errors import Code, SlipstreamError

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Dialect(StrEnum):
    """Whose API a route speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


def error_body(error: SlipstreamError, dialect: Dialect) -> dict[str, Any]:
    """The error as the dialect's clients parse it."""
    said: dict[str, Any] = error.openai()
    return said if dialect is Dialect.OPENAI else _anthropic(error.status, said["error"]["message"])


def error_event(error: SlipstreamError, dialect: Dialect) -> bytes:
    """An event that ends a stream. The blank line in front ends whatever event was cut in half."""
    data = json.dumps(error_body(error, dialect)).encode()
    return b"\n\n" + (b"event: error\n" if dialect is Dialect.ANTHROPIC else b"") + b"data: " + data + b"\n\n"


def translated(status: int, body: bytes, dialect: Dialect) -> bytes:
    """An error body of llama-server in the dialect of the route: it has OpenAI's shape, whatever the route."""
    if dialect is Dialect.OPENAI:
        return body
    return json.dumps(_anthropic(status, said_by(body))).encode()


def refused_by(model: str, status: int, body: bytes) -> SlipstreamError:
    """What the server of `model` answered, for a client that has already been told 200."""
    code = Code.INVALID_REQUEST if 400 <= status < 500 else Code.UPSTREAM_FAILED
    return SlipstreamError(code, f"the server of {model!r} answered {status}: {said_by(body)}")


def said_by(body: bytes) -> str:
    """The message in an error body of llama-server."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return body[:500].decode(errors="replace")


def _anthropic(status: int, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
