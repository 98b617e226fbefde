"""The product images: engine and orchestrator, the orchestrator alone, and which layers a change leaves alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.images.conftest import container
from tests.support import eventually
from tests.support.docker import MAIN, build_image

pytestmark = pytest.mark.integration

# Ours above the engine: packages of Python, what we depend on.
LAYERS_OF_PYTHON = 2

# Answers /health below a prefix as a llama-server that loads, to those who know its key.
LOADING = """
import http.server, pathlib
pathlib.Path("/proc/self/comm").write_text("llama-server")
class Loading(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        knows = self.headers["Authorization"] == "Bearer a-key" and self.path == "/below/health"
        self.send_response(503 if knows else 404)
        self.end_headers()
http.server.HTTPServer(("", 8099), Loading).serve_forever()
"""


def of_image(image: str) -> dict[str, Any]:
    return dict(json.loads(MAIN.run("image", "inspect", image))[0])


def layers(image: str) -> list[str]:
    found: list[str] = of_image(image)["RootFS"]["Layers"]
    return found


def versions(image: str) -> dict[str, Any]:
    return dict(json.loads(MAIN.run("run", "--rm", "--entrypoint", "cat", image, "/versions.json")))


def test_a_change_of_python_touches_no_layer_of_the_engine(
    engine_image: str, product_image: str, server: Path, context: Path, tmp_path: Path
) -> None:
    below, before = layers(engine_image), layers(product_image)
    assert before[: len(below)] == below
    copy = shutil.copytree(context, tmp_path / "copy")
    module = copy / "orchestrator/units.py"
    module.write_text(f"{module.read_text()}\n# changed\n")
    changed = build_image("slipstream", "slipstream:test-changed", server=server, context=copy)
    after = layers(changed)
    MAIN.run("image", "rm", changed)
    assert after != before
    same = len(below) + LAYERS_OF_PYTHON
    assert after[:same] == before[:same]


def test_a_new_commit_changes_labels_and_no_layer(
    engine_image: str, product_image: str, server: Path, context: Path
) -> None:
    for target, image in (("llama-server", engine_image), ("slipstream", product_image)):
        commit = ("REVISION=0123abc", "VERSION=9.9.9", "SOURCE_DATE_EPOCH=1700000000")
        made = build_image(target, f"{image}-commit", *commit, server=server, context=context)
        found = of_image(made)
        MAIN.run("image", "rm", made)
        assert found["RootFS"]["Layers"] == layers(image)
        labels = found["Config"]["Labels"]
        assert labels["org.opencontainers.image.revision"] == "0123abc"
        assert labels["org.opencontainers.image.version"] == "9.9.9"


def test_it_is_the_engine_and_the_orchestrator(product_image: str, engine_image: str) -> None:
    said, of_engine = versions(product_image), versions(engine_image)
    assert said["llama_cpp"] == of_engine["llama_cpp"] and said["variant"] == "cpu"
    assert of_engine["packages"].items() <= said["packages"].items()
    assert said["packages"]["python3"].startswith(said["slipstream"]["python"].rpartition(".")[0])
    assert said["slipstream"]["packages"]["fastapi"]
    config = of_image(product_image)["Config"]
    assert config["User"] == "10001:10001" and config["Cmd"] == ["serve"]
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment["SLIPSTREAM_ACCELERATOR"] == "cpu"
    # They would be flags of every server that nobody has checked.
    assert not [name for name in environment if name.startswith("LLAMA_")]
    assert set(config["Volumes"]) == {"/var/lib/slipstream", "/var/cache/slipstream"}


def test_the_orchestrator_alone_carries_no_server(orchestrator_image: str, product_image: str) -> None:
    assert MAIN.run("run", "--rm", "--entrypoint", "ls", orchestrator_image, "/opt").split() == ["slipstream", "venv"]
    said = versions(orchestrator_image)
    assert said["slipstream"] == versions(product_image)["slipstream"] and "llama_cpp" not in said
    config = of_image(orchestrator_image)["Config"]
    assert not [entry for entry in config["Env"] if entry.startswith(("SLIPSTREAM_LLAMA_SERVER", "LLAMA_"))]
    assert "slipstream.llama-server" not in config["Labels"]
    assert "containers of their own" in config["Labels"]["org.opencontainers.image.description"]
    alone = ("run", "--rm", "--read-only", "--cap-drop", "ALL", orchestrator_image, "--version")
    assert said["slipstream"]["version"] in MAIN.run(*alone)


@pytest.mark.parametrize("names", ["my.example.org,slipstream", "*"])
def test_it_is_well_whatever_names_it_is_reached_by(product_image: str, names: str) -> None:
    settings = ("--env", "SLIPSTREAM_ALLOW_NO_KEYS=true", "--env", f"SLIPSTREAM_ALLOWED_HOSTS={names}")
    with container(product_image, options=("--tmpfs", "/tmp", *settings)) as running:
        assert running.becomes("healthy").startswith("200 ")


def test_a_server_that_loads_is_not_well_yet(product_image: str) -> None:
    variables = {"LLAMA_ARG_PORT": "8099", "LLAMA_ARG_API_PREFIX": "/below", "LLAMA_API_KEY": "a-key,another"}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    with container(product_image, "-c", LOADING, options=("--entrypoint", "/opt/venv/bin/python", *options)) as loading:

        def answered() -> str | None:
            done = loading.exec("/opt/slipstream/llama-server-health")
            assert done.returncode == 1
            return done.stdout if done.stdout.startswith("HTTP") else None

        assert " 503 " in eventually(answered, "it listens")
