"""Request bodies: read within a bound, and filled with a model's defaults where the client is silent."""

import json
from typing import Any

from starlette.types import Receive

from orchestrator.errors import Code, SlipstreamError

_SPACE = b" \t\r\n"


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


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body; SlipstreamError invalid_request for anything else."""
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError) as e:
        raise SlipstreamError(Code.INVALID_REQUEST, f"the request body is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise SlipstreamError(Code.INVALID_REQUEST, f"expected a JSON object, got {type(value).__name__}")
    return value


def additions(request: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What a request to generate needs besides: `defaults` where the client is silent, no drafts with logprobs.

    llama-server gives a drafted token the logprob 0.0 (llama.cpp#27972), so real ones cost the drafts of this one
    request (patch 0003).
    """
    added = {k: v for k, v in defaults.items() if k not in request}
    if wants_logprobs(request | added) and request.get("speculative.n_max") != 0:
        added["speculative.n_max"] = 0
    return added


def with_fields(raw: bytes, request: dict[str, Any], added: dict[str, Any]) -> bytes:
    """The body for the server. The client's own bytes stay as they are, `raw` itself if nothing is added."""
    if not added:
        return raw
    if not request or not added.keys().isdisjoint(request):
        try:
            return json.dumps(request | added).encode()
        except RecursionError as e:
            raise SlipstreamError(Code.INVALID_REQUEST, "the request body is nested too deeply") from e
    body = raw.lstrip(_SPACE)
    return json.dumps(added).encode()[:-1] + b"," + body[1:]


def wants_logprobs(request: dict[str, Any]) -> bool:
    """Whether the answer has to carry probabilities, in any of the dialects."""
    return any(bool(request.get(field)) for field in ("logprobs", "top_logprobs", "n_probs"))
