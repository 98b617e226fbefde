"""What the document says of answers: errors by status, and event streams."""

from collections.abc import Iterable
from typing import Any

from sse_starlette import EventSourceResponse

from orchestrator.errors import PROBLEM_TYPE, STATUS, Code
from orchestrator.gateway.reply import SSE

PING_SECONDS = 15
Answers = dict[int | str, dict[str, Any]]

ERROR_BODY = {"$ref": "#/components/schemas/ErrorBody"}
# What every route of the control plane may answer.
ALWAYS = (
    Code.INVALID_REQUEST,
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    Code.REQUEST_TOO_LARGE,
    Code.INTERNAL,
    Code.DISK_FULL,
)
# A route with a model in its path.
OF_A_MODEL = (Code.MODEL_NOT_FOUND,)
# Why a server is not even started.
NOT_PLANNED = (
    Code.MODEL_INCOMPLETE,
    Code.INVALID_FLAG,
    Code.INVALID_GGUF,
    Code.PREFLIGHT_FAILED,
    Code.HAZARD,
    Code.DOES_NOT_FIT,
)
# Whatever makes a server start or end.
LIFECYCLE = (
    *OF_A_MODEL,
    Code.CONFLICT,
    *NOT_PLANNED,
    Code.SERVER_START_FAILED,
    Code.SERVER_STOPPED,
    Code.QUARANTINED,
    Code.NO_ROOM,
    Code.SHUTTING_DOWN,
    Code.HOST_FAILED,
    Code.WRONG_BYTES,
    Code.SOURCE_UNSUPPORTED,
)
# What reads the header of a file, here or where it is.
SOURCES = (
    Code.SOURCE_FAILED,
    Code.SOURCE_GATED,
    Code.SOURCE_NOT_FOUND,
    Code.SOURCE_AMBIGUOUS,
    Code.SOURCE_UNSUPPORTED,
    Code.INVALID_GGUF,
    Code.WRONG_BYTES,
)
JOB = (Code.CONFLICT, Code.SHUTTING_DOWN)


def errors(*codes: Code) -> Answers:
    """These codes and those of every route, by their status."""
    return errors_as({PROBLEM_TYPE: {"schema": ERROR_BODY}}, (*ALWAYS, *codes))


def errors_as(content: dict[str, Any], codes: Iterable[Code]) -> Answers:
    """Codes by their status, with a body of this content."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS[code], []).append(f"`{code}`")
    return {
        status: {"description": f"Error: {', '.join(names)}.", "content": content}
        for status, names in sorted(by_status.items())
    }


def stream(description: str, example: str, *names: str, data: str | None = None) -> Answers:
    """A 200 that is a stream of events of these names; `data` is the schema of their data, where it is JSON."""
    json = {"contentMediaType": "application/json", "contentSchema": {"$ref": f"#/components/schemas/{data}"}}
    told = example.rpartition("data: ")[2].strip()
    schema: dict[str, Any] = {
        "type": "object",
        "description": "One of the server-sent events (WHATWG HTML, section 9.2), in UTF-8.",
        "required": ["data"],
        "properties": {
            "event": {"type": "string", "description": "Its name.", "enum": [*names], "examples": [names[0]]},
            "id": {"type": "string", "description": "For Last-Event-ID.", "examples": ["17"]},
            "data": {"type": "string", "description": "What it tells.", "examples": [told]} | (json if data else {}),
        },
    }
    return {200: {"description": description, "content": {SSE.decode(): {"schema": schema, "example": example}}}}


class EventStream(EventSourceResponse):
    """The media type for the document."""

    media_type = SSE.decode()
