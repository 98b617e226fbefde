"""Every route of the gateway reaches the route of the real server that it names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.gateway.routes import ROUTES
from tests.integration.orchestrator.conftest import THREADS, MakeOrchestrator
from tests.integration.orchestrator.streams import MESSAGES
from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

Json = dict[str, Any]
CHAT: Json = {"messages": MESSAGES, "max_tokens": 4}
RANK: Json = {"query": "a", "documents": ["a", "b"]}
# What a toy cannot do: the server's own words are the proof that it was asked.
NO_EMBEDDING = "does not support embeddings"
NO_RERANKING = "does not support reranking"
NO_INFILL = "Infill is not supported by this model"
NO_AUDIO = "does not support audio input"

BY_UPSTREAM: dict[str, tuple[Json, str]] = {
    "/v1/chat/completions": (CHAT, '"object":"chat.completion"'),
    "/v1/chat/completions/input_tokens": (CHAT, '"input_tokens":'),
    "/v1/completions": ({"prompt": "a", "max_tokens": 4}, '"object":"text_completion"'),
    "/completion": ({"prompt": "a", "n_predict": 4}, '"tokens_predicted":4'),
    "/v1/responses": ({"input": "a", "max_output_tokens": 4}, '"object":"response"'),
    "/v1/responses/input_tokens": ({"input": "a"}, '"input_tokens":'),
    "/v1/messages": (CHAT, '"type":"message"'),
    "/v1/messages/count_tokens": (CHAT, '"input_tokens":'),
    "/tokenize": ({"content": "ab"}, '"tokens":['),
    "/detokenize": ({"tokens": [98]}, '"content":"b"'),
    "/apply-template": (CHAT, '"prompt":"<|im_start|>user'),
    "/infill": ({"input_prefix": "a", "input_suffix": "b"}, NO_INFILL),
    "/v1/embeddings": ({"input": "a"}, NO_EMBEDDING),
    "/embedding": ({"content": "a"}, NO_EMBEDDING),
    "/v1/rerank": (RANK, NO_RERANKING),
    "/v1/reranking": (RANK, NO_RERANKING),
}


@pytest.mark.parametrize("path", [path for path, route in ROUTES.items() if not route.is_form])
def test_json_routes(house: Orchestrator, path: str) -> None:
    body, sign = BY_UPSTREAM[ROUTES[path].upstream]
    response = house.http.post(path, json={"model": "toy", **body})
    assert sign in response.text
    assert response.status_code == (501 if "support" in sign else 200)


@pytest.mark.parametrize("path", [path for path, route in ROUTES.items() if route.is_form])
def test_forms(house: Orchestrator, path: str) -> None:
    files = {"file": ("a.wav", b"RIFF\r\n--", "audio/wav")}
    response = house.http.post(path, data={"model": "alias-of-toy"}, files=files)
    assert (response.status_code, NO_AUDIO in response.text) == (501, True)
    unknown = house.http.post(path, data={"model": "nobody"}, files=files)
    assert unknown.json()["error"]["code"] == "model_not_found"


@pytest.fixture(scope="module")
def embedding(patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """With servers that embed and rank, which generate nothing."""
    made = Orchestrator(tmp_path_factory.mktemp("embedding"), patched_server)
    for name, flags in (("embed", {"embedding": True, "pooling": "mean"}), ("rank", {"reranking": True})):
        made.write_model(name, toys.pair().path, server=THREADS | {"ctx_size": 1024, **flags})
    with running_orchestrator(made):
        yield made


class TestEmbedding:
    @pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/embeddings"])
    def test_embeddings(self, embedding: Orchestrator, path: str) -> None:
        response = embedding.http.post(
            path, json={"model": "embed", "input": "abc", "content": "abc"}
        ).raise_for_status()
        assert '"embedding":[' in response.text
        assert isinstance(response.json(), dict if path.startswith("/v1") else list), "OpenAI's form, and llama.cpp's"

    @pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
    def test_rerank(self, embedding: Orchestrator, path: str) -> None:
        response = embedding.http.post(path, json={"model": "rank", **RANK}).raise_for_status()
        assert len(response.json()["results"]) == 2

    def test_of_several_models_one_has_to_be_named(self, embedding: Orchestrator) -> None:
        response = embedding.http.post("/v1/embeddings", json={"input": "a"})
        assert (response.status_code, "embed, rank" in response.text) == (400, True)


@pytest.mark.parametrize(
    "method, path",
    [
        *(("GET", path) for path in ("/props", "/v1/props", "/lora-adapters", "/v1/stream", "/tools", "/v1/health")),
        *(("POST", path) for path in ("/props", "/lora-adapters", "/slots/0?action=erase", "/v1/slots/0?action=save")),
        *(("POST", path) for path in ("/v1/chat/completions/control", "/v1/streams/lookup", "/models/load")),
    ],
)
def test_nothing_else_of_the_server_is_reached(house: Orchestrator, method: str, path: str) -> None:
    assert house.http.request(method, path, json={"model": "toy"}).status_code in (404, 405)


class TestAnthropic:
    def test_a_stream(self, house: Orchestrator) -> None:
        body = {"model": "toy", "stream": True, **CHAT}
        with house.http.stream("POST", "/v1/messages", json=body) as response:
            names = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
        assert (names[0], names[-1]) == ("message_start", "message_stop")

    @pytest.mark.parametrize(
        "body, status, kind",
        [
            ({"model": "nobody"}, 404, "not_found_error"),
            ({"model": 7}, 400, "invalid_request_error"),
            # llama-server's own status for it.
            ({"model": "toy"}, 500, "api_error"),
        ],
    )
    def test_errors_have_its_shape(self, house: Orchestrator, body: Json, status: int, kind: str) -> None:
        response = house.http.post("/v1/messages", json=body)
        assert response.status_code == status
        assert set(response.json()) == {"type", "error"} and set(response.json()["error"]) == {"type", "message"}
        assert response.json()["error"]["type"] == kind


def test_models_and_their_state(house: Orchestrator) -> None:
    house.start_model("other")
    for path in ("/v1/models", "/models"):
        entries = {entry["id"]: entry for entry in house.http.get(path).raise_for_status().json()["data"]}
        assert entries["other"]["status"] == {"value": "loaded"} and entries["other"]["state"] == "ready"
    house.command("other", "stop").raise_for_status()
    one = house.http.get("/v1/models/other").raise_for_status().json()
    assert (one["status"]["value"], one["state"]) == ("unloaded", "stopped")


def test_without_a_model_the_only_one_answers(make_orchestrator: MakeOrchestrator) -> None:
    ours = make_orchestrator()
    for name in ("other", "endless"):
        (ours.models_dir / f"{name}.yaml").unlink()
    with running_orchestrator(ours):
        response = ours.http.post("/tokenize", content=json.dumps({"content": "a"}))
        assert isinstance(response, httpx.Response) and response.status_code == 200
