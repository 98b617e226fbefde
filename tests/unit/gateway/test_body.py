import json
from typing import Any

import pytest
from starlette.types import Message

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway.body import prepared, read_body, wants_logprobs


class Chunks:
    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    async def __call__(self) -> Message:
        return self.messages.pop(0)


def chunk(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_chunks_are_joined() -> None:
    assert await read_body(Chunks(chunk(b"ab"), chunk(b""), chunk(b"c", more=False)), 3) == b"abc"


async def test_a_client_that_leaves_has_no_body() -> None:
    assert await read_body(Chunks(chunk(b"ab"), {"type": "http.disconnect"}), 10) is None


async def test_too_large_is_refused_before_the_rest_is_read() -> None:
    chunks = Chunks(chunk(b"abc"), chunk(b"d"), chunk(b"never read", more=False))
    with pytest.raises(SlipstreamError, match="larger than 3 bytes") as caught:
        await read_body(chunks, 3)
    assert caught.value.code is Code.REQUEST_TOO_LARGE
    assert len(chunks.messages) == 1


@pytest.mark.parametrize("defaults", [{}, {"temperature": 1.0}])
def test_a_body_that_needs_nothing_passes_untouched(defaults: dict[str, Any]) -> None:
    raw = '{ "temperature":0.10,  "x": "é" }'.encode()
    assert prepared(raw, json.loads(raw), defaults) is raw


def test_defaults_fill_only_what_is_absent() -> None:
    request = {"model": "m", "temperature": None, "unknown": {"a": [1]}, "text": "é\ud800", "big": 2**70}
    body = prepared(b"", request, {"temperature": 1.0, "top_p": 0.9, "stop": ["x"]})
    assert json.loads(body) == request | {"top_p": 0.9, "stop": ["x"]}


@pytest.mark.parametrize("field", [{"logprobs": True}, {"logprobs": 2}, {"top_logprobs": 3}, {"n_probs": 1}])
def test_real_logprobs_cost_the_drafts_of_this_request(field: dict[str, Any]) -> None:
    assert wants_logprobs(field)
    assert json.loads(prepared(b"", field, {})) == field | {"speculative.n_max": 0}
    assert json.loads(prepared(b"", field | {"speculative.n_max": 4}, {}))["speculative.n_max"] == 0


@pytest.mark.parametrize("field", [{}, {"logprobs": False}, {"logprobs": None}, {"n_probs": 0}, {"top_logprobs": None}])
def test_without_logprobs_nothing_is_added(field: dict[str, Any]) -> None:
    assert not wants_logprobs(field)
    raw = json.dumps(field).encode()
    assert prepared(raw, field, {}) is raw


def test_a_request_that_drafts_nothing_anyway_passes_untouched() -> None:
    raw = b'{"logprobs": true, "speculative.n_max": 0}'
    assert prepared(raw, json.loads(raw), {}) is raw
