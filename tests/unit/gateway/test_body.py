import json
from typing import Any

import pytest
from starlette.types import Message

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway.body import additions, parse, read_body, wants_logprobs, with_fields


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


def prepared(raw: bytes, defaults: dict[str, Any]) -> bytes:
    request = parse(raw)
    return with_fields(raw, request, additions(request, defaults))


@pytest.mark.parametrize("defaults", [{}, {"temperature": 1.0}])
def test_a_body_that_needs_nothing_passes_untouched(defaults: dict[str, Any]) -> None:
    raw = '{ "temperature":0.10,  "x": "é" }'.encode()
    assert prepared(raw, defaults) is raw


def test_defaults_fill_only_what_is_absent() -> None:
    request = {"model": "m", "temperature": None, "unknown": {"a": [1]}, "text": "é\ud800", "big": 2**70}
    body = prepared(json.dumps(request).encode(), {"temperature": 1.0, "top_p": 0.9, "stop": ["x"]})
    assert json.loads(body) == request | {"top_p": 0.9, "stop": ["x"]}


@pytest.mark.parametrize(
    "raw, body",
    [
        (b'\n\t{"a": 1.10}\n', b'{"top_p": 0.9,"a": 1.10}\n'),
        (b" { } ", b'{"top_p": 0.9}'),
        (b'{"a":"\xc3\xa9"}', b'{"top_p": 0.9,"a":"\xc3\xa9"}'),
    ],
)
def test_the_clients_own_bytes_stay(raw: bytes, body: bytes) -> None:
    assert prepared(raw, {"top_p": 0.9}) == body


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe{", b"[" * 10_000, "{}".encode("utf-16"), b"\xef\xbb\xbf{}"])
def test_what_is_no_json_in_utf_8_is_refused(raw: bytes) -> None:
    with pytest.raises(SlipstreamError, match="not JSON"):
        parse(raw)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(SlipstreamError, match="expected a JSON object, got list"):
        parse(b"[]")


@pytest.mark.parametrize("field", [{"logprobs": True}, {"logprobs": 2}, {"top_logprobs": 3}, {"n_probs": 1}])
def test_real_logprobs_cost_the_drafts_of_this_request(field: dict[str, Any]) -> None:
    assert wants_logprobs(field)
    for extra in ({}, {"speculative.n_max": 4}):
        body = prepared(json.dumps(field | extra).encode(), {})
        assert json.loads(body) == field | {"speculative.n_max": 0}
        assert body.count(b"speculative.n_max") == 1, "no key twice"


@pytest.mark.parametrize("field", [{}, {"logprobs": False}, {"logprobs": None}, {"n_probs": 0}, {"top_logprobs": None}])
def test_without_logprobs_nothing_is_added(field: dict[str, Any]) -> None:
    assert not wants_logprobs(field)
    raw = json.dumps(field).encode()
    assert prepared(raw, {}) is raw


def test_a_request_that_drafts_nothing_anyway_passes_untouched() -> None:
    raw = b'{"logprobs": true, "speculative.n_max": 0}'
    assert prepared(raw, {}) is raw
