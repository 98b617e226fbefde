"""`add`, `pull`, `start`, `chat` on a model from a hub, by the command line alone and by REST alone; Ollama's store."""

import json
from pathlib import Path

import pytest

from tests.integration.supply.conftest import SPLIT, WHOLE, MakeHouse, Parts, drafted, post, pulled
from tests.integration.test_cli import slipstream
from tests.support.hub import Hub
from tests.support.ollama_store import OllamaStoreMaker
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration


def test_by_the_command_line_alone(house: Orchestrator, hub: Hub) -> None:
    added = slipstream(house, "add", f"hf:{SPLIT}", "--name", "parts")
    assert "wrote parts.yaml" in added.stdout and "the drafter" in added.stdout
    pull = slipstream(house, "pull", "parts")
    assert hub.file(SPLIT, "parts-F32.gguf").sha256 in pull.stdout
    assert "pull parts: fetching parts-F32.gguf" in pull.stderr
    started = slipstream(house, "start", "parts")
    assert "parts is ready, speculation draft-mtp" in started.stdout
    chat = slipstream(house, "chat", "parts", "hello", "--max-tokens", "16", "--temperature", "0")
    assert "accepted" in chat.stdout
    assert "1 wrong" not in slipstream(house, "verify").stdout
    assert "0 files" in slipstream(house, "gc", "--dry-run").stdout


def test_by_rest_alone(house: Orchestrator, hub: Hub) -> None:
    shown = post(house, "/api/models", {"origin": f"hf:{WHOLE}"}, dry_run="true")
    assert shown.status_code == 200 and not list(house.models_dir.glob("*.yaml"))
    added = post(house, "/api/models", {"origin": f"hf:{WHOLE}"})
    assert added.status_code == 201, added.text
    spec = added.json()["spec"]
    commit = hub.repositories[WHOLE].resolve("main")
    assert spec["source"] == {"hf": WHOLE, "file": "toy-F32.gguf", "revision": commit}
    assert (spec["name"], spec["speculation"]["type"]) == ("toy", "draft-mtp")
    assert hub.asked("content") and all(r.range for r in hub.asked("content")), "only headers were read"
    pulled(house, "toy")
    house.command("toy", "start").raise_for_status()
    assert drafted(house, "toy")[0] > 0
    again = post(house, "/api/models", {"origin": f"hf:{WHOLE}"})
    assert (again.status_code, again.json()) == (201, added.json()), "a request may be sent again"
    hub.add(WHOLE, "README.md", b"# Another commit\n", lfs=False)
    other = post(house, "/api/models", {"origin": f"hf:{WHOLE}"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


def test_between_two_nothing_is_guessed(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    hub.add(WHOLE, "toy-Q8_0.gguf", parts.files.trunk)
    refused = post(house, "/api/models", {"origin": f"hf:{WHOLE}"})
    assert (refused.status_code, refused.json()["code"]) == (409, "source_ambiguous")
    assert {c["file"]: c["role"] for c in refused.json()["candidates"]} == {
        "toy-F32.gguf": "model",
        "toy-Q8_0.gguf": "model",
    }
    by_quant = post(house, "/api/models", {"origin": f"hf:{WHOLE}:q8_0", "name": "by-quant"})
    assert by_quant.json()["spec"]["source"]["file"] == "toy-Q8_0.gguf"
    by_file = post(house, "/api/models", {"origin": f"hf:{WHOLE}:toy-F32.gguf", "name": "by-file"})
    assert by_file.json()["spec"]["source"]["file"] == "toy-F32.gguf"
    missing = post(house, "/api/models", {"origin": f"hf:{WHOLE}:Q2_K"})
    assert (missing.status_code, missing.json()["code"]) == (404, "source_not_found")
    hub.add(SPLIT, "MTP/mtp-parts-Q8_0.gguf", parts.files.drafter)
    drafters = post(house, "/api/models", {"origin": f"hf:{SPLIT}"})
    assert (drafters.status_code, drafters.json()["code"]) == (409, "source_ambiguous")
    none = post(house, "/api/models", {"origin": f"hf:{SPLIT}", "drafter": "none", "name": "none"}).json()
    assert none["spec"]["drafter"] is None and none["spec"]["speculation"]["type"] == "none"


def test_a_remote_file_is_inspected_without_being_fetched(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    source = {"hf": WHOLE, "file": "toy-F32.gguf"}
    found = post(house, "/api/gguf/inspect", {"source": source})
    assert found.status_code == 200, found.text
    assert found.json()["architecture"] == "glm4moe" and found.json()["head"]["blocks"] == [2]
    assert not list((house.home / "cache").rglob("*.gguf"))
    address = hub.serve("toy.gguf", parts.toy.path)
    by_url = post(house, "/api/gguf/inspect", {"source": {"url": address}}).json()
    assert by_url["tokenizer"]["fingerprint"] == found.json()["tokenizer"]["fingerprint"]


def test_a_file_behind_an_address_serves(house: Orchestrator, hub: Hub, parts: Parts) -> None:
    address = hub.serve("toy.gguf", parts.toy.path)
    body = {"name": "far", "source": {"url": address}, "speculation": {"type": "draft-mtp"}, "server": {"threads": 1}}
    house.http.put("/api/models/far", json=body).raise_for_status()
    pulled(house, "far")
    assert drafted(house, "far")[0] > 0


@pytest.fixture
def ollama(tmp_path: Path, parts: Parts) -> OllamaStoreMaker:
    store = OllamaStoreMaker(tmp_path / "ollama")
    store.create(
        "toy:mtp",
        model=parts.files.trunk,
        draft=parts.files.drafter,
        params={"temperature": 0.5, "num_ctx": 2048, "stop": ["\\n\\n"]},
    )
    return store


def blobs_of(store: OllamaStoreMaker) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in (store.root / "blobs").iterdir()}


def test_an_ollama_model_serves_in_place_with_its_drafter(make_house: MakeHouse, ollama: OllamaStoreMaker) -> None:
    before = blobs_of(ollama)
    house = make_house(OLLAMA_MODELS=str(ollama.root))
    house.start()
    added = json.loads(slipstream(house, "add", "ollama:toy:mtp", "--name", "from-ollama", "--json").stdout)
    spec = added["spec"]
    assert spec["drafter"] == {"ollama": "toy:mtp", "layer": "drafter"}
    assert spec["defaults"]["temperature"] == 0.5 and spec["server"]["ctx_size"] == 2048
    spec["server"]["threads"] = 1
    house.http.put("/api/models/from-ollama", json=spec).raise_for_status()
    slipstream(house, "start", "from-ollama")
    assert drafted(house, "from-ollama")[0] > 0
    slipstream(house, "verify", "from-ollama")
    slipstream(house, "gc")
    assert blobs_of(ollama) == before
    assert not list((house.home / "cache" / "models").rglob("sha256-*")), "nothing is copied"


def test_an_ollama_model_that_is_not_there_names_those_that_are(
    make_house: MakeHouse, ollama: OllamaStoreMaker
) -> None:
    house = make_house(OLLAMA_MODELS=str(ollama.root))
    house.start()
    assert "toy:mtp" in slipstream(house, "add", "ollama:nobody", status=1).stderr


def test_ollama_is_looked_into_when_asked(make_house: MakeHouse, ollama: OllamaStoreMaker, tmp_path: Path) -> None:
    runner = tmp_path / "lib" / "llama-server"
    runner.parent.mkdir()
    runner.write_text("#!/bin/sh\necho 'version: 0.3.0-dev (build 1, commit d222767c7)' >&2\n")
    runner.chmod(0o755)
    house = make_house(OLLAMA_MODELS=str(ollama.root), OLLAMA_LIB_DIR=str(runner.parent))
    house.start()
    shown = slipstream(house, "ollama")
    assert shown.stdout == "toy:mtp\n" and "commit d222767c7" in shown.stderr
