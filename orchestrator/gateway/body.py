"""Request bodies: read within a bound, and filled with a model's defaults where the client is silent."""

import json
from typing import Any

from starlette.types import Receive

from orchestrator.errors import Code, SlipstreamError


async def read_body(receive: Receive, limit_bytes: int) -> bytes | None:
    """The whole body; None when the client left; SlipstreamError request_too_large beyond the limit."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise SlipstreamError(
                Code.REQUEST_TOO_LARGE, f"the request body is larger than {limit_bytes} bytes, the limit here"
            )
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def with_defaults(raw: bytes, request: dict[str, Any], defaults: dict[str, Any]) -> bytes:
    """`raw` itself when the client set every field that has a default, else the request with them filled in."""
    absent = {k: v for k, v in defaults.items() if k not in request}
    return json.dumps(request | absent).encode() if absent else raw
