"""An orchestrator with keys over the fake llama-server, cut off from every network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import FAKE_SERVER, REPOSITORY
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script
from tests.support.serving import serving

ADMIN, INFERENCE = "admin-key", "inference-key"
# The names that stand in the document's examples, so that generated requests meet a model.
MODELS = ("smollm2-135m", "gemma-4-e2b")
SLOTS = '[{"id": 0, "n_ctx": 512, "is_processing": false, "speculative": true, "prompt": "a secret"}]'


class _Nothing(BaseHTTPRequestHandler):
    """A hub, an index and a proxy that have nothing: an answer at once, where no answer would be asked for again."""

    def refuse(self) -> None:
        self.send_error(404)

    do_GET = do_HEAD = do_POST = do_CONNECT = refuse

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def nothing_there() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Nothing)
    server.daemon_threads = True
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


@dataclass(frozen=True)
class Locked:
    """`house` asks without a key; these ask with one."""

    house: Orchestrator

    def ask(self, method: str, path: str, key: str | None, **options: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.house.http.request(method, path, headers=headers, **options)  # type: ignore[arg-type]


@pytest.fixture
def nowhere() -> Iterator[str]:
    with nothing_there() as url:
        yield url


@pytest.fixture
def locked(tmp_path: Path, nowhere: str) -> Iterator[Locked]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "admin").write_text(ADMIN)
    (home / "inference").write_text(INFERENCE)
    settings = {
        "ADMIN_KEYS_FILE": str(home / "admin"),
        "API_KEYS_FILE": str(home / "inference"),
        "WAIT_TIMEOUT_SECONDS": "2",
        "START_TIMEOUT_SECONDS": "5",
        "DRAIN_TIMEOUT_SECONDS": "1",
        "SHUTDOWN_TIMEOUT_SECONDS": "1",
    }
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "HF_ENDPOINT": nowhere,
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
        "PIP_NO_INDEX": "1",
        "OLLAMA_MODELS": str(home / "ollama"),
    }
    made = Orchestrator(home, FAKE_SERVER, settings, environment)
    made.models_dir.mkdir()
    for name in MODELS:
        write_script(made.models_dir / f"{name}.gguf", {"slots_page": SLOTS})
        made.write_model(name, source={"path": f"{name}.gguf"})
    with running_orchestrator(made):
        yield Locked(made)
