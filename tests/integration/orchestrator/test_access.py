"""Who may ask what, what a start refuses, and what no stranger ever sees."""

import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import MESSAGES
from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, argv_of, environment_of, running_orchestrator

pytestmark = pytest.mark.integration


def keys(folder: Path) -> dict[str, str]:
    for name in ("admin", "api"):
        (folder / name).write_text(f"{name}-key-1\n{name}-key-2\n")
    return {"ADMIN_KEYS_FILE": str(folder / "admin"), "API_KEYS_FILE": str(folder / "api")}


def status(house: Orchestrator, path: str, key: str | None = None, **headers: str) -> int:
    if key:
        headers["authorization"] = f"Bearer {key}"
    return house.http.get(path, headers=headers).status_code


def test_keys_are_apart(make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
    with running_orchestrator(make_orchestrator(**keys(tmp_path))) as house:
        assert [status(house, path) for path in ("/healthz", "/readyz")] == [200, 200]
        assert [status(house, path) for path in ("/metrics", "/v1/models", "/api/servers")] == [401, 401, 401]
        for key in ("api-key-1", "api-key-2"):
            assert [status(house, path, key) for path in ("/metrics", "/v1/models", "/api/servers")] == [200, 200, 403]
        assert [status(house, path, "admin-key-2") for path in ("/metrics", "/v1/models", "/api/servers")] == [200] * 3
        with openai.OpenAI(base_url=f"{house.base_url}/v1", api_key="api-key-1") as client:
            assert client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=2).choices
        with (
            openai.OpenAI(base_url=f"{house.base_url}/v1", api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        assert not [key for key in ("admin-key", "api-key") if key in house.log_text()]


def test_names_and_pages_of_strangers_are_refused(house: Orchestrator) -> None:
    for path in ("/healthz", "/v1/models", "/api/servers", "/metrics"):
        assert status(house, path, host="evil.example") == 403
    assert status(house, "/api/servers", origin="http://evil.example") == 403
    assert status(house, "/api/servers", origin="http://localhost:3000") == 200


def test_a_request_that_is_too_large_is_refused(make_orchestrator: MakeOrchestrator) -> None:
    with running_orchestrator(make_orchestrator(FAKE_SERVER, MAX_REQUEST_BYTES="100000")) as house:
        response = house.http.post("/v1/chat/completions", content=b"x" * 5_000_000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


def test_children_are_hermetic(make_orchestrator: MakeOrchestrator) -> None:
    ours = {"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_API_KEY": "mine", "HF_TOKEN": "hf-secret"}
    with running_orchestrator(make_orchestrator(environment=ours)) as house:
        child = house.start_model("other")
        env = environment_of(child.pid)
        strange = [name for name in env if name.startswith(("LLAMA_ARG_", "HF_", "SLIPSTREAM_"))]
        assert strange == ["SLIPSTREAM_OWNER"]
        assert env["LLAMA_API_KEY"] not in ("mine", "")
        assert child.get("/props").json()["default_generation_settings"]["n_ctx"] == 2048
        argv = argv_of(child.pid)
        assert tuple(argv[argv.index("--host") :][:2]) == ("--host", "127.0.0.1")
        assert {"--offline", "--spec-type", "--metrics"} <= set(argv)


def test_the_key_of_a_server_is_nowhere_to_be_read(house: Orchestrator) -> None:
    child = house.start_model("toy")
    house.chat("toy").raise_for_status()
    pages = ["/metrics", "/api/servers", "/api/servers/toy", "/api/models", "/api/flags", "/v1/models"]
    pages += ["/api/servers/toy/logs?follow=false&tail=10000", "/api/openapi.json"]
    texts = [house.http.get(page).raise_for_status().text for page in pages]
    texts += [house.log_text(), " ".join(argv_of(child.pid)), str(house.chat("toy").headers)]
    assert not [text for text in texts if child.api_key in text]


def test_a_server_answers_nobody_without_its_key(house: Orchestrator) -> None:
    child = house.start_model("toy")
    assert httpx.get(f"{child.url}/slots").status_code == 401
    assert httpx.post(f"{child.url}/completion", json={"prompt": "x"}).status_code == 401


def test_prompts_are_in_no_log(house: Orchestrator) -> None:
    house.chat("toy", text="a very private question").raise_for_status()
    assert "very private" not in house.server_log("toy") + house.log_text()


class TestRefusedStart:
    """A start that cannot be right ends at once, with a sentence and no traceback."""

    def refused(self, orchestrator: Orchestrator) -> str:
        orchestrator.launch()
        try:
            code = orchestrator.wait(20)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it serves: {orchestrator.log_text()}")
        assert code not in (0, None) and code > 0
        log = orchestrator.log_text()
        assert "Traceback" not in log
        assert orchestrator.leftovers() == []
        return log

    def test_open_to_others_without_keys(self, make_orchestrator: MakeOrchestrator) -> None:
        assert "SLIPSTREAM_ADMIN_KEYS_FILE" in self.refused(make_orchestrator(HOST="0.0.0.0"))

    def test_open_to_others_if_something_else_guards(self, make_orchestrator: MakeOrchestrator) -> None:
        with running_orchestrator(make_orchestrator(HOST="0.0.0.0", ALLOW_NO_KEYS="true")) as house:
            port = httpx.URL(house.base_url).port
            assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200

    def test_keys_that_cannot_be_read(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert "holds no key" in self.refused(make_orchestrator(ADMIN_KEYS_FILE=str(tmp_path / "empty")))
        assert str(tmp_path / "gone") in self.refused(make_orchestrator(API_KEYS_FILE=str(tmp_path / "gone")))

    def test_wrong_setting(self, make_orchestrator: MakeOrchestrator) -> None:
        assert "SLIPSTREAM_PORT" in self.refused(make_orchestrator(PORT="many"))

    def test_no_server(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        assert "SLIPSTREAM_LLAMA_SERVER" in self.refused(make_orchestrator(tmp_path / "gone"))
        assert "make server" in self.refused(make_orchestrator(LLAMA_SERVER=""))

    def test_no_llama_server(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        assert "SLIPSTREAM_LLAMA_SERVER" in self.refused(make_orchestrator(tmp_path))
        assert "not a llama-server" in self.refused(make_orchestrator(Path("/bin/echo")))
        assert "/bin/false" in self.refused(make_orchestrator(Path("/bin/false")))

    def test_a_state_folder_that_cannot_be(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        folder = tmp_path / "file" / "state"
        assert str(folder) in self.refused(make_orchestrator(STATE_DIR=str(folder)))

    def test_a_damaged_database(self, make_orchestrator: MakeOrchestrator, tmp_path: Path) -> None:
        (tmp_path / "slipstream.db").write_bytes(bytes(range(256)) * 20)
        assert "slipstream.db" in self.refused(make_orchestrator(STATE_DIR=str(tmp_path)))

    def test_a_second_owner(self, make_orchestrator: MakeOrchestrator, house: Orchestrator) -> None:
        second = make_orchestrator(STATE_DIR=str(house.home / "state"))
        assert "another orchestrator owns" in self.refused(second)

    def test_a_port_that_is_taken(self, make_orchestrator: MakeOrchestrator, house: Orchestrator) -> None:
        port = str(httpx.URL(house.base_url).port)
        assert "address already in use" in self.refused(make_orchestrator(PORT=port))


def test_relative_paths_are_taken_from_where_it_was_started(
    make_orchestrator: MakeOrchestrator, patched_server: Path, toys: ToyBox
) -> None:
    relative = {"MODELS_DIR": "models", "CACHE": "cache", "STATE_DIR": "state", "LLAMA_SERVER": "bin/llama-server"}
    orchestrator = make_orchestrator(**relative)
    (orchestrator.home / "bin").symlink_to(patched_server.parent)
    member = orchestrator.home / "cache/models/pypi/toy-model==1.0/toy.gguf"
    member.parent.mkdir(parents=True)
    member.symlink_to(toys.pair().path)
    orchestrator.write_model("cached", source={"pypi": "toy-model==1.0", "file": "toy.gguf", "sha256": "0" * 64})
    with running_orchestrator(orchestrator) as house:
        assert [house.chat(model).status_code for model in ("other", "cached")] == [200, 200]


def test_a_wrong_model_file_is_told_and_hides_no_other(make_orchestrator: MakeOrchestrator) -> None:
    orchestrator = make_orchestrator()
    (orchestrator.models_dir / "bad.yaml").write_text("name: bad\nsource: {path: x}\nserver: 7\n")
    with running_orchestrator(orchestrator) as house:
        assert "bad.yaml:3" in house.log_text()
        assert house.chat("toy").status_code == 200
        [problem] = house.http.get("/api/models").json()["problems"]
        assert (problem["file"], problem["line"]) == ("bad.yaml", 3)
