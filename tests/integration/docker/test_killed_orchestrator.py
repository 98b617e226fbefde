"""kill -9 of an orchestrator whose servers run in containers: they go on, or are cleaned up; what was said holds."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.integration.orchestrator.streams import ENDLESS, Background, open_stream
from tests.support import ToyBox, eventually
from tests.support.docker import TestEngine, build_variant, docker_host, new_owner, write_hosts
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

FLAGS = {"threads": 1, "spec_draft_threads": 1, "ctx_size": 512}
DRAFTING = {"type": "draft-mtp"}
ONE = {"ctx-size": 1024}
LOAD_SECONDS = 60.0
# Loads only once somebody has said so, and tells of itself at once.
GATED = (
    "#!/bin/bash",
    "case $1 in --help|--version) ;; *) until [ -e /tmp/go ]; do sleep 0.05; done;; esac",
    'exec /opt/llama-server/llama-server "$@"',
)


class House(Orchestrator):
    """An orchestrator with one Docker host, whose network tells its containers from those of others."""

    engine: TestEngine
    network: str

    def containers(self) -> list[str]:
        """Names of its containers, ended ones included."""
        listed = self.engine.run("ps", "--all", "--filter", f"network={self.network}", "--format", "{{.Names}}")
        return sorted(listed.split())

    def crash(self, *asking: Background) -> None:
        """KILL, with nothing in between; who waits for an answer gets none."""
        self.send(signal.SIGKILL)
        self.wait()
        for one in asking:
            with pytest.raises(httpx.TransportError):
                one.wait()

    def is_ready(self, model: str = "one") -> bool:
        return bool(self.view(model)["state"] == "ready")

    def start_acknowledged(self) -> str:
        """The container of a model that was asked for with flags of its own."""
        self.http.put("/api/servers/one", json={"state": "running", "flags": ONE}).raise_for_status()
        eventually(self.is_ready, "it is ready", LOAD_SECONDS)
        [container] = self.containers()
        return container

    def require_acknowledged(self) -> None:
        """What the client was told of `one` holds, and it answers."""
        view = self.view("one")
        assert (view["desired"], view["flags"]) == ("running", ONE)
        assert self.chat("one").status_code == 200


@pytest.fixture
def house(engine: TestEngine, image: str, toys: ToyBox, tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "house", Path("/nowhere"), {"STOP_TIMEOUT_SECONDS": "5", "SHUTDOWN_TIMEOUT_SECONDS": "5"})
    made.engine, made.network = engine, f"slipstream-{new_owner()}"
    for name in ("one", "endless"):
        made.write_model(name, toys.mtp().path, speculation=DRAFTING, server=FLAGS)
    hosts = write_hosts(tmp_path / "hosts.yaml", docker_host("here", image, network=made.network))
    made.settings = {**made.settings, "HOSTS_FILE": str(hosts)}
    try:
        with running_orchestrator(made):
            yield made
    finally:
        if left := made.containers():
            engine.run("rm", "--force", "--volumes", *left)
        engine.remove_network(made.network)


def test_an_idle_server_goes_on(house: House) -> None:
    container = house.start_acknowledged()
    before = house.view("one")["instances"][0]
    assert before["container"] == container
    house.crash()
    assert house.engine.inspect(container)["State"]["Running"]
    house.start()
    eventually(house.is_ready, "it is taken over", LOAD_SECONDS)
    [after] = house.view("one")["instances"]
    assert (after["container"], after["pid"]) == (container, before["pid"])
    assert "taken over" in after["why"]
    house.require_acknowledged()
    assert house.containers() == [container]


def test_a_server_in_a_stream_goes_on_and_its_slot_is_free_again(house: House) -> None:
    house.command("endless", "start").raise_for_status()
    [container] = house.containers()
    with open_stream(house, **ENDLESS) as stream:
        stream.begin()
        house.crash()
        with pytest.raises(httpx.TransportError):
            list(stream.events())
    house.start()
    eventually(lambda: house.is_ready("endless"), "it is taken over", LOAD_SECONDS)
    # Its only slot: this answer would wait for ever behind the one whose client has gone.
    assert house.chat("endless").status_code == 200
    assert house.containers() == [container]


def test_a_server_in_a_load_goes_on_loading(house: House, image: str, tmp_path: Path) -> None:
    script = "\\n".join((*GATED, "")).replace('"', '\\"').replace("$", "\\$")
    lines = ("USER 0", f'RUN printf "{script}" >/gated && chmod 755 /gated', "LABEL slipstream.llama-server=/gated")
    gated = build_variant(f"slipstream-gated:{house.network}", image, *lines)
    try:
        house.crash()
        write_hosts(tmp_path / "hosts.yaml", docker_host("here", gated, network=house.network))
        house.start()
        start = f"{house.base_url}/api/servers/one/start"
        starting = Background(lambda: httpx.post(start, timeout=60.0, trust_env=False))
        eventually(lambda: len(house.containers()) == 1 and house.view("one")["instances"], "it loads", LOAD_SECONDS)
        [container] = house.containers()
        eventually(lambda: house.engine.inspect(container)["State"]["Running"], "its container runs")
        house.crash(starting)
        house.start()
        eventually(lambda: house.view("one")["state"] == "loading", "it is taken over")
        assert house.containers() == [container]
        house.engine.run("exec", container, "touch", "/tmp/go")
        eventually(house.is_ready, "it has loaded", LOAD_SECONDS)
        assert house.chat("one").status_code == 200
        assert house.containers() == [container]
    finally:
        house.close()
        with suppress(AssertionError):
            house.engine.run("rm", "--force", *house.containers())
        house.engine.run("image", "rm", "--force", gated)


def test_one_that_died_meanwhile_is_removed_and_started_anew(house: House) -> None:
    container = house.start_acknowledged()
    house.crash()
    house.engine.crash(container)
    house.engine.run("wait", container)
    house.start()
    eventually(house.is_ready, "a new one is ready", LOAD_SECONDS)
    [new] = house.containers()
    assert new != container
    house.require_acknowledged()


def test_one_that_is_wanted_otherwise_is_replaced(house: House, toys: ToyBox) -> None:
    """Its model file has changed while nobody looked: the one that runs is not what it says."""
    container = house.start_acknowledged()
    house.crash()
    house.write_model("one", toys.mtp().path, speculation=DRAFTING, server=FLAGS | {"parallel": 2})
    house.start()
    eventually(house.is_ready, "the new one is ready", LOAD_SECONDS)
    [new] = house.containers()
    assert new != container and "--parallel" in house.view("one")["argv"]
    house.require_acknowledged()


def test_one_whose_model_is_gone_is_ended(house: House) -> None:
    house.start_acknowledged()
    house.crash()
    (house.models_dir / "one.yaml").unlink()
    house.start()
    eventually(lambda: not house.containers(), "nobody wants it", LOAD_SECONDS)


def test_an_acknowledged_stop_holds(house: House) -> None:
    house.start_acknowledged()
    house.command("one", "stop").raise_for_status()
    house.crash()
    assert house.containers() == []
    house.start()
    view = house.view("one")
    assert (view["desired"], view["state"]) == ("stopped", "stopped") and house.containers() == []


def test_an_orderly_end_leaves_no_container(house: House) -> None:
    house.start_acknowledged()
    house.send(signal.SIGTERM)
    assert house.wait() == 0
    assert house.containers() == []
