"""The engine image: what is in it, that it serves where nothing may be written, and how it starts, ends and is well."""

import json
from pathlib import Path

import httpx
import pytest

from tests.integration.images.conftest import Container, RunEngine, container
from tests.support import eventually
from tests.support.docker import MAIN

pytestmark = pytest.mark.integration

HEALTH = "/opt/slipstream/llama-server-health"
USER = 10001


def chat(url: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def processes(running: Container) -> dict[str, dict[str, str]]:
    """The kernel's facts on its processes, by name."""
    done = running.exec("bash", "-c", "cat /proc/[0-9]*/status")
    found: list[dict[str, str]] = []
    for line in done.stdout.splitlines():
        name, _, value = line.partition(":\t")
        if name == "Name":
            found.append({})
        found[-1][name] = value.strip()
    return {facts["Name"]: facts for facts in found}


def test_it_serves_and_drafts_with_nothing_to_write_to_and_no_capability(run_engine: RunEngine) -> None:
    running = run_engine()
    assert "200" in running.becomes("healthy")
    answer = chat(running.url())
    assert answer.status_code == 200, running.logs()
    timings = answer.json()["timings"]
    assert answer.json()["usage"]["completion_tokens"] == 16
    assert timings["draft_n"] > 0 and timings["draft_n_steps"] > 0
    assert "slipstream:" not in running.logs()

    of_server = processes(running)["llama-server"]
    assert {int(of_server[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert of_server["NoNewPrivs"] == "1"
    assert set(of_server["Uid"].split()) == set(of_server["Gid"].split()) == {str(USER)}


def test_a_term_signal_ends_it_in_order(run_engine: RunEngine) -> None:
    running = run_engine()
    running.becomes("healthy")
    MAIN.run("stop", "--time", "30", running.name)
    # 137 would be the engine's SIGKILL after the 30 s.
    assert running.state()["ExitCode"] in (0, 143)


def test_orphans_are_reaped(run_engine: RunEngine) -> None:
    running = run_engine()
    assert processes(running)["tini"]["Pid"] == "1"
    running.exec("bash", "-c", "sleep 0.2 & echo $!")
    eventually(lambda: "sleep" not in processes(running), "the orphan has ended and is no zombie")


@pytest.mark.parametrize(
    "flags, options",
    [
        (("--port", "8099"), ()),
        ((), ("--env", "LLAMA_ARG_PORT=8097")),
        (("--port", "8099"), ("--env", "LLAMA_ARG_PORT=8097")),
        (("--host", "127.0.0.2"), ()),
        (("--api-key", "a-key"), ()),
        (("--api-prefix", "/below"), ("--env", "LLAMA_API_KEY=a-key,another")),
    ],
)
def test_health_is_asked_where_the_server_listens(
    run_engine: RunEngine, flags: tuple[str, ...], options: tuple[str, ...]
) -> None:
    running = run_engine(*flags, options=options)
    assert "200" in running.becomes("healthy")


@pytest.mark.parametrize(
    "flags, said",
    [(("--host", "/tmp/server.sock"), "unix socket /tmp/server.sock"), (("--port", "0"), "chooses its port itself")],
)
def test_health_says_when_it_cannot_ask(run_engine: RunEngine, flags: tuple[str, ...], said: str) -> None:
    found = run_engine(*flags, options=("--tmpfs", "/tmp:mode=1777")).becomes("unhealthy")
    assert said in found and "--no-healthcheck" in found


def test_a_server_that_is_absent_or_hangs_is_not_well(engine_image: str, run_engine: RunEngine) -> None:
    with container(engine_image, "infinity", options=("--entrypoint", "sleep")) as empty:
        done = empty.exec(HEALTH)
        assert (done.returncode, done.stdout) == (1, "no llama-server runs\n")
    running = run_engine()
    running.becomes("healthy")
    done = running.exec("env", "LLAMA_ARG_PORT=9", HEALTH)
    assert (done.returncode, done.stdout, done.stderr) == (1, "nothing listens on 127.0.0.1 port 9\n", "")
    running.exec("bash", "-c", f"kill -STOP {processes(running)['llama-server']['Pid']}")
    done = running.exec(HEALTH)
    assert (done.returncode, done.stdout) == (1, "no answer within 4 s\n")


def test_it_says_what_is_in_it(engine_image: str, server: Path) -> None:
    def read(path: str) -> str:
        return MAIN.run("run", "--rm", "--entrypoint", "cat", engine_image, path)

    versions = json.loads(read("/versions.json"))
    assert versions["llama_cpp"] == json.loads((server.parent / "build.json").read_text())
    assert (versions["variant"], versions["accelerator"], versions["architectures"]) == ("cpu", "cpu", [])
    assert {"libgomp1", "tini", "libc6"} <= versions["packages"].keys()
    assert not [
        name for name in versions["packages"] if name.startswith(("python3", "gcc-1", "curl")) and "base" not in name
    ]
    assert "MIT License" in read("/opt/llama-server/licenses/LICENSE")
    assert "MIT" in read("/usr/share/doc/slipstream/LICENSE")
    assert "tini" in read("/usr/share/doc/tini/copyright").lower()


def test_it_is_configured_for_a_stranger(engine_image: str) -> None:
    config = json.loads(MAIN.run("image", "inspect", engine_image))[0]["Config"]
    assert config["User"] == f"{USER}:{USER}", "a number: engines that forbid root cannot tell a name's"
    assert config["Entrypoint"][0] == "/usr/bin/tini" and not config["Cmd"]
    assert config["Labels"]["slipstream.llama-server"] == "/opt/llama-server/llama-server"
    assert config["Labels"]["slipstream.variant"] == "cpu"
    assert list(config["ExposedPorts"]) == ["8080/tcp"] and not config.get("Volumes")


def test_a_volume_on_its_home_keeps_what_a_driver_compiles(engine_image: str) -> None:
    confined = ("run", "--rm", "--read-only", "--cap-drop", "ALL", "--volume", "/var/lib/slipstream")
    said = MAIN.run(*confined, "--entrypoint", "bash", engine_image, "-c", "mkdir ~/.nv && echo ~")
    assert said == "/var/lib/slipstream"


def test_one_of_its_users_may_be_another(run_engine: RunEngine) -> None:
    running = run_engine(options=("--user", "20002:20002"))
    running.becomes("healthy")
    assert processes(running)["llama-server"]["Uid"].split()[0] == "20002"
