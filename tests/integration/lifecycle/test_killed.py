"""kill -9 of the orchestrator in every phase: afterwards nothing is left over, and all is as it was acknowledged."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from tests.integration.lifecycle.conftest import MakeStage, Stage
from tests.integration.orchestrator.streams import Background, open_stream
from tests.support import eventually
from tests.support.orchestrator import environment_of, is_gone, running_orchestrator

pytestmark = pytest.mark.integration

FIRST_FLAGS = {"ctx-size": 512}
STREAM = {"chunks": ["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"]}
Phase = Callable[[Stage], None]


def call(stage: Stage, method: str, path: str, body: object = None) -> Background:
    """A command whose answer never comes."""
    return Background(lambda: httpx.request(method, stage.base_url + path, json=body, timeout=30.0, trust_env=False))


def kill(stage: Stage, *asking: Background) -> None:
    """KILL, with nothing in between; whoever waits for an answer gets none."""
    stage.send(signal.SIGKILL)
    stage.wait()
    for one in asking:
        with pytest.raises(httpx.TransportError):
            one.wait()


def state_of(stage: Stage, model: str) -> str:
    return str(stage.view(model)["state"])


def in_a_load(stage: Stage) -> None:
    starting = call(stage, "POST", "/api/servers/two/start")
    eventually(lambda: state_of(stage, "two") == "loading" and stage.view("two")["pid"], "the second one loads")
    kill(stage, starting)


def in_a_drain(stage: Stage) -> None:
    with open_stream(stage, model="one") as stream:
        assert next(stream.events()) == "1"
        restarting = call(stage, "POST", "/api/servers/one/restart?drain_seconds=60")
        eventually(lambda: "draining" in states(stage, "one"), "the first one drains")
        kill(stage, restarting)
        with pytest.raises(httpx.TransportError):
            list(stream.events())


def in_a_swap(stage: Stage) -> None:
    swapping = call(stage, "POST", "/api/swap", {"start": "two"})
    eventually(lambda: state_of(stage, "two") == "loading" and stage.view("two")["pid"], "the second one loads")
    kill(stage, swapping)


def in_a_stream(stage: Stage) -> None:
    with open_stream(stage, model="one") as stream:
        assert next(stream.events()) == "1"
        kill(stage)
        with pytest.raises(httpx.TransportError):
            list(stream.events())


def right_after_an_acknowledged_put(stage: Stage) -> None:
    body = {"state": "running", "flags": FIRST_FLAGS}
    stage.http.put("/api/servers/one", json=body).raise_for_status()
    kill(stage)


def in_between(stage: Stage) -> None:
    kill(stage)


def states(stage: Stage, model: str) -> list[str]:
    return [instance["state"] for instance in stage.view(model)["instances"]]


PHASES = [(phase, room) for phase in (in_a_load, in_a_drain, in_a_swap) for room in (1, 2)]
PHASES += [(phase, 1) for phase in (in_a_stream, right_after_an_acknowledged_put, in_between)]


@pytest.mark.parametrize(
    "phase, room", PHASES, ids=[f"{phase.__name__.replace('_', ' ')}, room for {room}" for phase, room in PHASES]
)
def test_all_is_as_acknowledged(make_stage: MakeStage, phase: Phase, room: int) -> None:
    stage = make_stage(room=room)
    stage.model("one", STREAM | {"chunk_gate": str(stage.gate("one"))})
    stage.model("two", {"load_gate": str(stage.gate("two"))})
    with running_orchestrator(stage):
        body = {"state": "running", "flags": FIRST_FLAGS}
        stage.http.put("/api/servers/one", json=body).raise_for_status()
        before = [*stage.leftovers()]
        phase(stage)
        eventually(lambda: all(map(is_gone, before)) and not stage.leftovers(), "no process is left", 2.0)
        stage.gate("one").touch()
        stage.gate("two").touch()
        stage.start()
        eventually(lambda: state_of(stage, "one") == "ready", "the first one is back")
        one, two = stage.view("one"), stage.view("two")
        assert (one["desired"], one["flags"]) == ("running", FIRST_FLAGS)
        assert (two["desired"], two["state"], two["flags"]) == ("stopped", "stopped", {})
        assert "512" in one["argv"]
        assert stage.leftovers() == [one["pid"]]
        assert stage.chat("one").status_code == 200
        assert stage.chat("two").status_code == 200


def test_a_stop_that_was_acknowledged_holds(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.model("one")
    with running_orchestrator(stage):
        stage.start_model("one")
        stage.command("one", "stop").raise_for_status()
        kill(stage)
        stage.start()
        assert (state_of(stage, "one"), stage.view("one")["desired"]) == ("stopped", "stopped")
        assert stage.chat("one").status_code == 200


def test_again_and_again(make_stage: MakeStage) -> None:
    """Each run ends while the servers of the one before come back."""
    stage = make_stage(room=2)
    for name in ("one", "two"):
        stage.model(name, {"ticks": True, "load_gate": str(stage.gate(name))})
        stage.gate(name).touch()
    with running_orchestrator(stage):
        for name in ("one", "two"):
            stage.start_model(name)
            stage.gate(name).unlink()
        for _ in range(2):
            kill(stage)
            eventually(lambda: not stage.leftovers(), "no process is left", 2.0)
            stage.start()
            eventually(lambda: len(stage.leftovers()) == 2, "both come back")
        for name in ("one", "two"):
            stage.gate(name).touch()
            eventually(lambda: state_of(stage, name) == "ready", f"{name} is back")  # noqa: B023


def test_one_that_outlived_the_orchestrator_is_ended(make_stage: MakeStage) -> None:
    """By its mark: its parent is somebody else, and it would not end with us."""
    stage = make_stage()
    stage.model("one")
    with running_orchestrator(stage):
        mark = environment_of(stage.start_model("one").pid)["SLIPSTREAM_OWNER"]
        kill(stage)
        orphan = subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", "--alias", "one"],
            env={"SLIPSTREAM_OWNER": mark},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with orphan:
            assert orphan.stdout is not None
            orphan.stdout.readline()
            stage.start()
            assert orphan.wait(10.0) == -signal.SIGTERM
        eventually(lambda: state_of(stage, "one") == "ready", "it is back")
        assert stage.chat("one").status_code == 200


def test_what_is_written_is_whole_at_every_moment(make_stage: MakeStage) -> None:
    """Flags change without pause, and each kill finds the last acknowledged ones, or those that were on their way."""
    stage = make_stage()
    stage.model("one")
    acknowledged = 0
    for _ in range(3):
        with running_orchestrator(stage):
            flags = stage.view("one")["flags"]
            assert flags.get("ctx-size", 0) in (acknowledged, acknowledged + 1), flags
            acknowledged = flags.get("ctx-size", 0)
            for _ in range(5):
                body = {"flags": {"ctx_size": acknowledged + 1}}
                stage.http.put("/api/servers/one", json=body).raise_for_status()
                acknowledged += 1
            body = {"flags": {"ctx_size": acknowledged + 1}}
            last = call(stage, "PUT", "/api/servers/one", body)
            os.kill(stage.pid, signal.SIGKILL)
            stage.wait()
            try:
                assert json.loads(last.wait().text)["flags"] == {"ctx-size": acknowledged + 1}
                acknowledged += 1
            except httpx.TransportError:
                pass
