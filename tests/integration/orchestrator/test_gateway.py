"""What users have: plain HTTP and the openai client, streaming and not, against a real drafting server."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import MESSAGES, open_stream
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

Json = dict[str, Any]


def ask(house: Orchestrator, **fields: Any) -> Json:
    answer: Json = house.chat("toy", temperature=0, **fields).raise_for_status().json()
    return answer


def text_of(answer: Json) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_a_plain_answer_carries_the_servers_own_fields(house: Orchestrator) -> None:
    answer = ask(house, max_tokens=64)
    assert answer["model"] == "toy"
    assert answer["usage"]["completion_tokens"] == 64
    timings = answer["timings"]
    assert timings["predicted_n"] == 64
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert {"draft_n_relaxed", "draft_n_steps"} <= set(timings)


def test_a_stream_says_the_same_as_a_plain_answer(house: Orchestrator) -> None:
    plain = text_of(ask(house, max_tokens=300))
    assert "é" in plain, "the toy walks through its whole alphabet"
    with open_stream(house, model="toy", temperature=0, max_tokens=300) as stream:
        events = list(stream.events())
    assert events[-1] == "[DONE]"
    chunks = [json.loads(data) for data in events[:-1]]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert said == plain
    assert chunks[-1]["timings"]["predicted_n"] == 300
    assert len(chunks) > 20, "it came in pieces"


def test_stream_headers(house: Orchestrator) -> None:
    with open_stream(house, model="toy", max_tokens=1) as stream:
        headers = stream.response.headers
        assert stream.response.status_code == 200
        assert headers.get_list("content-type") == ["text/event-stream"]
        assert headers.get_list("cache-control") == ["no-cache"]
        assert headers.get_list("x-accel-buffering") == ["no"]
        assert "server" not in headers and "access-control-allow-origin" not in headers


def test_bytes_are_those_of_the_server(house: Orchestrator) -> None:
    ours = house.chat("toy", temperature=0, max_tokens=100, stop=["\x00"], unknown={"a": [1, None]})
    child = house.child("toy")
    body = json.loads(ours.request.content)
    theirs = httpx.post(
        f"{child.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {child.api_key}"}
    )
    own = {"id", "created", "timings", "usage"}
    assert {k: v for k, v in ours.json().items() if k not in own} == {
        k: v for k, v in theirs.json().items() if k not in own
    }
    assert list(ours.json()) == list(theirs.json()), "keys in the server's own order"
    assert ours.headers["content-type"] == theirs.headers["content-type"]


def test_request_fields_reach_the_server(house: Orchestrator) -> None:
    assert ask(house, max_tokens=32)["timings"]["draft_n"] > 0
    undrafted = ask(house, max_tokens=32, **{"speculative.n_max": 0})
    assert "draft_n" not in undrafted["timings"]
    assert text_of(ask(house, max_tokens=32)) == text_of(undrafted)


def test_logprobs_are_real_although_the_server_drafts(house: Orchestrator) -> None:
    answer = ask(house, max_tokens=16, logprobs=True, top_logprobs=2)
    found = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
    assert len(found) > 10, "two tokens may make one character"
    assert all(-20 < logprob < 0 for logprob in found)


def test_a_schema_holds_under_drafting(house: Orchestrator) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text = text_of(ask(house, max_tokens=400, response_format=wanted))
    assert text.startswith("{")


def test_an_alias_is_answered(house: Orchestrator) -> None:
    assert house.chat("alias-of-toy").status_code == 200


def test_two_streams_use_both_slots(house: Orchestrator) -> None:
    house.start_model("endless")
    endless: Json = {"model": "endless", "max_tokens": 10_000_000, "ignore_eos": True}
    with open_stream(house, **endless) as one, open_stream(house, **endless) as two:
        one.begin()
        two.begin()
        assert house.child("endless").busy_slots() == 2
    house.command("endless", "stop")


class TestOpenai:
    @pytest.fixture
    def client(self, house: Orchestrator) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{house.base_url}/v1", api_key="none", max_retries=0)

    def test_plain(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=16, temperature=0)
        assert answer.choices[0].message.content
        assert answer.usage is not None and answer.usage.completion_tokens == 16
        assert answer.model_extra is not None and answer.model_extra["timings"]["predicted_n"] == 16

    def test_stream(self, client: openai.OpenAI) -> None:
        plain = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=200, temperature=0)
        stream = client.chat.completions.create(
            model="toy",
            messages=MESSAGES,
            max_tokens=200,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"speculative.n_max": 1},
        )
        pieces = list(stream)
        said = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert said == plain.choices[0].message.content
        assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 200

    def test_completions_and_models(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="toy", prompt="ab", max_tokens=8, temperature=0)
        assert len(answer.choices[0].text) >= 8
        assert {model.id for model in client.models.list()} == {"toy", "alias-of-toy", "other", "endless"}
        assert client.models.retrieve("toy").owned_by == "slipstream"

    def test_errors_are_the_clients_own(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="nobody", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="toy", messages=MESSAGES, extra_body={"speculative.n_max": -1})

    async def test_the_async_client(self, house: Orchestrator) -> None:
        async with openai.AsyncOpenAI(base_url=f"{house.base_url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="toy",
                messages=MESSAGES,
                max_tokens=8,
                stream=True,
            )
            assert isinstance(stream, openai.AsyncStream)
            assert len([piece async for piece in stream]) > 1


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
        ("POST", "/v1/chat/completions", b'{"model": "nobody"}', 404),
        ("POST", "/v1/chat/completions", b'{"model": "toy"}', 400),
        ("POST", "/v1/chat/completions", b'{"model": "toy", "messages": 7}', 400),
        ("GET", "/v1/chat/completions", None, 405),
        ("GET", "/v1/nowhere", None, 404),
        ("POST", "/v1/slots/0?action=erase", b"{}", 404),
        ("POST", "/v1/embeddings", b'{"model": "toy", "input": "x"}', 501),
    ],
)
def test_every_error_has_openais_shape(
    house: Orchestrator, method: str, path: str, body: bytes | None, status: int
) -> None:
    response = house.http.request(method, path, content=body)
    assert response.status_code == status
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert {"message", "type", "code"} <= set(error)
    assert str(house.home) not in response.text and "Traceback" not in response.text


class TestWaiting:
    """A stream that asks for a model which has yet to be loaded."""

    @pytest.fixture
    def slow(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> Iterator[Orchestrator]:
        ours = make_orchestrator(FAKE_SERVER, KEEP_ALIVE_SECONDS="0.1")
        ours.write_model("slow", tmp_path / "slow.gguf")
        with running_orchestrator(ours):
            yield ours

    def test_the_openai_client_waits_through_the_comments(self, slow: Orchestrator, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "slow"}
        choice = {"index": 0, "delta": {"content": "hello"}, "finish_reason": None}
        events = [f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n", "data: [DONE]\n\n"]
        write_script(tmp_path / "slow.gguf", {"load_gate": str(gate), "chunks": events})
        with httpx.stream(
            "POST", f"{slow.base_url}/v1/chat/completions", json={"model": "slow", "stream": True}
        ) as raw:
            assert raw.headers["content-type"] == "text/event-stream"
            assert next(raw.iter_lines()).startswith(": waiting for 'slow': ")
            client = openai.OpenAI(base_url=f"{slow.base_url}/v1", api_key="none", max_retries=0)
            stream = client.chat.completions.create(model="slow", messages=MESSAGES, stream=True)
            gate.touch()
            assert [piece.choices[0].delta.content for piece in stream] == ["hello"]

    def test_a_load_that_fails_ends_the_stream_with_an_error(self, slow: Orchestrator, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        write_script(tmp_path / "slow.gguf", {"load_gate": str(gate), "exit_after_gate": 3})
        client = openai.OpenAI(base_url=f"{slow.base_url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="slow", messages=MESSAGES, stream=True)
        gate.touch()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "server_start_failed" and "ended with status 3" in caught.value.message


def test_many_answers_at_once_are_all_whole(house: Orchestrator) -> None:
    def one(number: int) -> int:
        return int(ask(house, text=f"question {number}", max_tokens=16)["usage"]["completion_tokens"])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(48))) == [16] * 48
