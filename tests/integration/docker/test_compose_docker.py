"""compose.docker.yaml on a real engine: the orchestrator in a container makes others beside it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import ToyBox, eventually
from tests.support.compose import NO_COMPOSE, Stack, clean_environment, config, services
from tests.support.docker import MAIN, bases, docker_answers, docker_host, write_hosts

pytestmark = pytest.mark.integration

SOCKET = Path("/var/run/docker.sock")
FILES = "compose.yaml:compose.docker.yaml"
FLAGS = {"threads": 1, "spec_draft_threads": 1, "ctx_size": 512}


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if not docker_answers("info") or not docker_answers("compose", "version"):
        pytest.skip("NOT TESTED: compose.docker.yaml. No Docker engine with compose answers.")
    server: Path = request.getfixturevalue("patched_server")
    folder = tmp_path_factory.mktemp("compose-docker")
    folder.chmod(0o755)
    project = f"slipstream-docker-test-{os.getpid()}"
    image, server_image, network = f"slipstream:{project}", f"slipstream-llama-server:{project}", f"{project}-servers"
    models = folder / "models"
    models.mkdir(mode=0o755)
    toy = Path(shutil.copy(toys.mtp().path, models / "toy.gguf"))
    toy.chmod(0o644)
    for name, path in (("bound", "toy.gguf"), ("kept", "/var/cache/slipstream/toy.gguf")):
        spec = {"name": name, "source": {"path": path}, "speculation": {"type": "draft-mtp"}, "server": FLAGS}
        (models / f"{name}.yaml").write_text(json.dumps(spec))
    hosts = write_hosts(folder / "hosts.yaml", docker_host("local", server_image, network=network))
    env = clean_environment() | bases() | {"COMPOSE_FILE": FILES, "LLAMA_SERVER": "prebuilt"}
    env |= {"LLAMA_SERVER_DIR": str(server.parent), "SLIPSTREAM_IMAGE": image, "SLIPSTREAM_SERVER_IMAGE": server_image}
    env |= {"SLIPSTREAM_PORT": "0", "SLIPSTREAM_MODELS_DIR": str(models), "SLIPSTREAM_HOSTS_FILE": str(hosts)}
    env |= {"DOCKER_GID": str(SOCKET.stat().st_gid), "SLIPSTREAM_SERVERS_NETWORK": network}
    stack = Stack(project, env)
    try:
        stack.compose("build", "--quiet", "slipstream", "llama-server", timeout_seconds=900)
        stack.up("slipstream")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans")
        for made in (image, server_image):
            subprocess.run(["docker", "image", "rm", made], capture_output=True, timeout=60, check=False)


def servers(stack: Stack) -> list[str]:
    """Names of the servers' containers on the stack's network."""
    network = stack.env["SLIPSTREAM_SERVERS_NETWORK"]
    names = MAIN.run("ps", "--all", "--filter", f"network={network}", "--format", "{{.Names}}").split()
    return [name for name in names if not name.startswith(stack.project)]


def chat(stack: Stack, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    return httpx.post(f"{stack.url('slipstream', 8080)}/v1/chat/completions", json=body, timeout=120)


def test_models_of_a_folder_and_of_a_volume_are_served_from_containers(stack: Stack) -> None:
    stack.exec("slipstream", "cp", "/etc/slipstream/models/toy.gguf", "/var/cache/slipstream/toy.gguf")
    for model in ("bound", "kept"):
        answer = chat(stack, model)
        assert answer.status_code == 200, f"{answer.text}\n{stack.compose('logs', '--tail', '60', 'slipstream')}"
    assert sorted(name.split("-")[1] for name in servers(stack)) == ["bound", "kept"]
    for name in servers(stack):
        found = MAIN.inspect(name)
        [mount] = found["Mounts"]
        assert mount["Destination"].endswith("/toy.gguf") and not mount["RW"]
        assert not any(found["NetworkSettings"]["Ports"].values())


def test_a_killed_orchestrator_finds_its_servers_again(stack: Stack) -> None:
    assert chat(stack, "bound").status_code == 200
    [before] = [name for name in servers(stack) if "bound" in name]
    MAIN.crash(stack.inspect("slipstream")["Id"])
    eventually(lambda: stack.inspect("slipstream")["RestartCount"] == 1, "the engine has started it again", 30.0)
    stack.up("slipstream")
    assert chat(stack, "bound").status_code == 200
    assert before in servers(stack), stack.compose("logs", "--tail", "40", "slipstream")


def test_down_leaves_no_server_behind(stack: Stack) -> None:
    assert chat(stack, "bound").status_code == 200
    stack.compose("down", "--volumes")
    assert stack.leftovers() == "" and not MAIN.has_network(stack.env["SLIPSTREAM_SERVERS_NETWORK"])


@pytest.mark.skipif(not docker_answers("compose", "version"), reason=NO_COMPOSE)
def test_configuration_needs_the_group_of_the_socket() -> None:
    done = config(COMPOSE_FILE=FILES)
    assert done.returncode != 0 and "stat -c %g" in done.stderr
    found = config(COMPOSE_FILE=FILES, DOCKER_GID="998")
    assert found.returncode == 0, found.stderr
    whole = json.loads(found.stdout)
    assert whole["services"]["slipstream"]["group_add"] == ["998"]
    assert whole["networks"]["servers"]["internal"] and "ports" not in whole["services"]["llama-server"]


@pytest.mark.skipif(not docker_answers("compose", "version"), reason=NO_COMPOSE)
@pytest.mark.parametrize("accelerator, variant", [("cpu", "cpu"), ("cuda", "cuda"), ("rocm", "rocm-gfx906")])
def test_servers_go_by_the_accelerator_and_the_orchestrator_has_none(accelerator: str, variant: str) -> None:
    found = services(COMPOSE_FILE=FILES, DOCKER_GID="998", ACCELERATOR=accelerator, RENDER_GID="44")
    orchestrator, server = found["slipstream"], found["llama-server"]
    assert server["image"] == f"slipstream-llama-server:{variant}"
    assert (server["build"]["args"]["ACCELERATOR"], server["build"]["args"]["VARIANT"]) == (accelerator, variant)
    assert orchestrator["image"] == "slipstream:orchestrator"
    arguments = orchestrator["build"]["args"]
    assert (arguments["ENGINE"], arguments["ACCELERATOR"], arguments["VARIANT"]) == ("engine-base", "cpu", "cpu")
    assert orchestrator["environment"]["SLIPSTREAM_ACCELERATOR"] == "cpu"
    assert orchestrator["group_add"] == ["998"]
    for service in (orchestrator, server):
        assert not {"devices", "deploy"} & service.keys()
    [hosts] = [v["source"] for v in orchestrator["volumes"] if v["target"] == "/etc/slipstream/hosts.yaml"]
    assert Path(hosts).name == f"hosts.{accelerator}.yaml" and Path(hosts).is_file()
