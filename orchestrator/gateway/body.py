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


def prepared(raw: bytes, request: dict[str, Any], defaults: dict[str, Any]) -> bytes:
    """The body for the server: `defaults` where the client is silent, no drafting where it asks for logprobs.

    llama-server gives a drafted token the logprob 0.0 (llama.cpp#27972), so real ones cost the drafts of this one
    request (patch 0003). `raw` itself comes back when there is nothing to add.
    """
    added = {k: v for k, v in defaults.items() if k not in request}
    if wants_logprobs(request | added) and request.get("speculative.n_max") != 0:
        added["speculative.n_max"] = 0
    return json.dumps(request | added).encode() if added else raw


def wants_logprobs(request: dict[str, Any]) -> bool:
    """Whether the answer has to carry probabilities, in any of the dialects."""
    return any(bool(request.get(field)) for field in ("logprobs", "top_logprobs", "n_probs"))
