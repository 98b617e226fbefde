"""compose.yaml on a real engine: build, up, chat, scrape, recreate, down.

The image takes the server that the other tests run, so nothing is compiled here. Grafana is left out: where no
image registry answers it cannot be had.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards import queries, substitute
from tests.support import eventually
from tests.support.compose import Stack, clean_environment
from tests.support.docker import bases, docker_answers
from tests.support.promql import rules

SERVICES = ("slipstream", "prometheus")
MODEL = "smollm2-135m"
SCRAPE_SECONDS = 60.0

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    if not docker_answers("info"):
        pytest.skip("NOT TESTED: compose.yaml. No Docker engine answers `docker info`.")
    if not docker_answers("compose", "version"):
        pytest.skip("NOT TESTED: compose.yaml. The engine answers, but `docker compose` is not installed.")
    # Not a parameter: without an engine nothing needs to be compiled.
    server: Path = request.getfixturevalue("patched_server")
    project = f"slipstream-test-{os.getpid()}"
    image = f"slipstream:{project}"
    env = clean_environment() | bases()
    env |= {"SLIPSTREAM_IMAGE": image, "LLAMA_SERVER": "prebuilt", "LLAMA_SERVER_DIR": str(server.parent)}
    # Port 0: the kernel chooses.
    env |= {"SLIPSTREAM_PORT": "0", "PROMETHEUS_PORT": "0"}
    stack = Stack(project, env)
    try:
        stack.compose("build", "--quiet", "slipstream", timeout_seconds=900)
        stack.up(*SERVICES)
        stack.exec("slipstream", "slipstream", "pull", MODEL)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans")
        subprocess.run(["docker", "image", "rm", image], capture_output=True, timeout=60, check=False)


def chat(stack: Stack) -> dict[str, Any]:
    """One answer; the first request loads the model."""
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name the colours of the rainbow."}],
        "max_tokens": 32,
    }
    answer = httpx.post(f"{stack.url('slipstream', 8080)}/v1/chat/completions", json=request, timeout=180)
    log = "" if answer.is_success else stack.compose("logs", "--tail", "60", "slipstream")
    assert answer.status_code == 200, f"{answer.text}\n{log}"
    body: dict[str, Any] = answer.json()
    return body


def query(stack: Stack, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{stack.url('prometheus', 9090)}/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, answer.text
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def eventually_up(stack: Stack) -> None:
    up = 'up{job="slipstream"} == 1'
    eventually(lambda: query(stack, up), f"Prometheus answers {up}", SCRAPE_SECONDS)


def test_chat_is_answered_through_the_published_port(stack: Stack) -> None:
    answer = chat(stack)
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["usage"]["completion_tokens"] > 0


def test_prometheus_has_scraped_the_tokens_of_the_answer(stack: Stack) -> None:
    predicted = int(chat(stack)["usage"]["completion_tokens"])

    def scraped() -> bool:
        total = query(stack, f'sum(slipstream_slot_predicted_tokens_total{{model="{MODEL}"}})')
        return bool(total) and float(total[0]["value"][1]) >= predicted

    eventually_up(stack)
    eventually(scraped, f"Prometheus has {predicted} predicted tokens or more", SCRAPE_SECONDS)


def test_prometheus_has_the_rules_and_no_target_that_fails(stack: Stack) -> None:
    def ask(what: str) -> Any:
        return httpx.get(f"{stack.url('prometheus', 9090)}/api/v1/{what}").json()["data"]

    def health() -> dict[str, str]:
        return {target["labels"]["job"]: target["health"] for target in ask("targets?state=active")["activeTargets"]}

    # The exporters of profiles that are off are no targets.
    eventually(lambda: "unknown" not in health().values(), "every target was asked", SCRAPE_SECONDS)
    eventually_up(stack)
    assert health() == {"slipstream": "up", "prometheus": "up"}
    loaded = {rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]}
    assert loaded == {rule.name for rule in rules()}


def test_prometheus_answers_every_query_of_the_dashboards(stack: Stack) -> None:
    eventually_up(stack)
    traffic = ("bench-traffic", MODEL, "--requests", "4", "--max-tokens", "16", "--json")
    assert json.loads(stack.exec("slipstream", "slipstream", *traffic))["models"][MODEL]["failed"] == 0
    tokens = substitute('sum(increase(slipstream_slot_predicted_tokens_total{model=~"$model"}[$__range]))')
    # Nothing at all until there are two scrapes of the series.
    eventually(
        lambda: any(float(found["value"][1]) > 0 for found in query(stack, tokens)),
        "the traffic is seen",
        SCRAPE_SECONDS,
    )
    for asked in queries():
        query(stack, substitute(asked.expr))


@pytest.mark.parametrize("service", SERVICES)
def test_containers_are_confined(stack: Stack, service: str) -> None:
    found = stack.inspect(service)
    published = found["NetworkSettings"]["Ports"].values()
    assert {binding["HostIp"] for bindings in published for binding in bindings or []} == {"127.0.0.1"}
    assert found["HostConfig"]["ReadonlyRootfs"]
    assert "no-new-privileges:true" in found["HostConfig"]["SecurityOpt"]
    lines = stack.exec(service, "cat", "/proc/1/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert int(status["CapEff"], 16) == 0
    assert set(status["Uid"].split()) == {"10001" if service == "slipstream" else "65534"}


@pytest.mark.parametrize("folder", ["/var/lib/slipstream", "/var/cache/slipstream"])
def test_a_folder_of_another_user_ends_the_start_with_the_chown(stack: Stack, tmp_path: Path, folder: str) -> None:
    image, name = stack.env["SLIPSTREAM_IMAGE"], f"{stack.project}-folder"
    argv = ["docker", "run", "--rm", "--name", name, "--read-only", "--tmpfs", "/tmp", "--env"]
    argv += ["SLIPSTREAM_ALLOW_NO_KEYS=true", "--volume", f"{tmp_path}:{folder}", image]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert f"folder {folder} cannot be written: Permission denied" in done.stderr
    assert "on the host, as root: chown -R 10001:10001 FOLDER" in done.stderr and "Traceback" not in done.stderr


def test_without_a_folder_for_temporary_files_the_start_ends_in_a_sentence(stack: Stack) -> None:
    argv = ["docker", "run", "--rm", "--read-only", "--env", "SLIPSTREAM_ALLOW_NO_KEYS=true"]
    argv += [stack.env["SLIPSTREAM_IMAGE"]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "--tmpfs /tmp" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_foreign_host_name_is_refused(stack: Stack) -> None:
    answer = httpx.get(f"{stack.url('slipstream', 8080)}/api/models", headers={"Host": "rebound.example"})
    assert 400 <= answer.status_code < 500, answer.text


def test_a_recreated_container_finds_the_model_in_the_volume(stack: Stack) -> None:
    def model_files() -> str:
        find = ("find", "/var/cache/slipstream", "-name", "*.gguf", "-printf", "%p %i\n")
        found = stack.exec("slipstream", *find)
        assert found, "no model file in the cache volume"
        return found

    chat(stack)
    files, container = model_files(), stack.inspect("slipstream")["Id"]
    stack.up("--force-recreate", "--no-deps", "slipstream")
    assert stack.inspect("slipstream")["Id"] != container
    chat(stack)
    assert model_files() == files


def test_stop_ends_the_servers_and_exits_by_itself(stack: Stack) -> None:
    chat(stack)
    stack.compose("stop", "slipstream")
    state = stack.inspect("slipstream")["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False), state


def test_with_keys_strangers_are_refused_and_prometheus_is_not(stack: Stack, tmp_path: Path) -> None:
    keys = {"ADMIN_KEYS_FILE": "an-admin-key", "API_KEYS_FILE": "an-api-key", "METRICS_KEY_FILE": "an-api-key"}
    env = dict(stack.env) | {"COMPOSE_FILE": "compose.yaml:docker/compose.keys.yaml"}
    for variable, key in keys.items():
        file = tmp_path / variable
        file.write_text(f"{key}\n")
        env[variable] = str(file)
    keyed = replace(stack, env=env)
    # Fresh containers: a series of the keyless ones must not pass for a scrape with a key.
    keyed.compose("down", "--volumes")
    keyed.up(*SERVICES)

    def status(path: str, key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"{keyed.url('slipstream', 8080)}{path}", headers=headers).status_code

    assert [status("/v1/models", key) for key in (None, "a-wrong-key", "an-api-key")] == [401, 401, 200]
    assert [status("/api/models", key) for key in (None, "an-api-key", "an-admin-key")] == [401, 403, 200]
    eventually_up(keyed)


def test_down_leaves_no_container_network_or_volume(stack: Stack) -> None:
    assert stack.leftovers()
    stack.compose("down", "--volumes")
    assert stack.leftovers() == ""
