"""Faults of servers and of whoever shares the machine with them: each ends in a reason, and nothing hangs."""

import json
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.lifecycle.asking import error_of, states, transitions
from tests.integration.lifecycle.conftest import MakeStage, Stage
from tests.integration.lifecycle.strange import strange_server
from tests.integration.orchestrator.streams import Background, open_stream
from tests.support import eventually
from tests.support.orchestrator import is_gone, running_orchestrator

pytestmark = pytest.mark.integration

FLOOD_BYTES = 100 << 20
MOST_GROWTH_BYTES = 32 << 20
GRACE_SECONDS = 10.0


class TestPort:
    @pytest.mark.parametrize("answers", [True, False], ids=["it answers", "it is silent"])
    def test_a_strange_process_is_not_taken_for_the_server(self, make_stage: MakeStage, answers: bool) -> None:
        stage = make_stage(START_TIMEOUT_SECONDS="1")
        with strange_server(answers=answers) as strange:
            stage.model("one", {"says_port": strange.port})
            with running_orchestrator(stage):
                assert error_of(stage.chat("one"))[1] == "server_start_failed"
                view = stage.view("one")
                assert (view["state"], view["pid"]) == ("failed", None)
                assert view["failure"]["reason"] == ("port" if answers else "not_ready")
                assert not stage.leftovers(), "the server that was started is gone"
                assert strange.generations == 0, "nothing of a client's reached the strange one"

    def test_a_stolen_one_is_told_and_can_be_tried_again(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        complaint = "E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 0"
        stage.model("one", {"complaint": complaint, "exit_in_load": 1})
        with running_orchestrator(stage):
            response = stage.command("one", "start")
            assert response.status_code == 503
            assert stage.view("one")["failure"]["reason"] == "port"
            stage.script("one")
            assert stage.start_model("one").pid
            assert stage.chat("one").status_code == 200


class TestChild:
    def test_that_ignores_term_is_killed(self, make_stage: MakeStage) -> None:
        stage = make_stage(STOP_TIMEOUT_SECONDS="0.3")
        stage.model("one", {"ignore_term": True, "child": True})
        with running_orchestrator(stage):
            pid = stage.start_model("one").pid
            stage.command("one", "stop").raise_for_status()
            assert is_gone(pid)
            assert states(stage, "one")[-2:] == ["stopping", "gone"]
            assert stage.view("one")["failure"] is None

    def test_that_floods_its_log_costs_neither_memory_nor_answers(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        done = stage.gate("flooded")
        stage.model("one", {"flood_bytes": FLOOD_BYTES, "flooded": str(done)})
        with running_orchestrator(stage):
            stage.start_model("one")
            before, slowest = resident_bytes(stage.pid), 0.0
            while not done.exists():
                began = time.monotonic()
                assert stage.http.get("/healthz").status_code == 200
                assert stage.chat("one").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 2.0
            assert resident_bytes(stage.pid) - before < MOST_GROWTH_BYTES
            assert len(stage.server_log("one").splitlines()) <= 2000
            stage.command("one", "stop").raise_for_status()

    def test_that_answers_and_never_generates(self, make_stage: MakeStage) -> None:
        stage = make_stage(START_TIMEOUT_SECONDS="0.5")
        hang = stage.gate("hang")
        hang.touch()
        stage.model("one", {"generation_hang": str(hang)})
        with running_orchestrator(stage):
            response = stage.command("one", "start")
            assert (response.status_code, response.json()["reason"]) == (503, "not_ready")
            assert "first generation" in stage.view("one")["failure"]["message"]
            assert not stage.leftovers()
            hang.unlink()
            assert stage.start_model("one").pid


class TestLoad:
    def test_with_progress_takes_as_long_as_it_takes(self, make_stage: MakeStage) -> None:
        """As ten minutes against a time-out of one."""
        stage = make_stage(START_TIMEOUT_SECONDS="1")
        stage.model("one", {"ticks": True, "load_gate": str(stage.gate("one"))})
        with running_orchestrator(stage):
            began = time.monotonic()
            asking = Background(lambda: stage.chat("one"))
            # A line comes every 20 ms.
            eventually(lambda: stage.server_log("one").count("loading") > 200, "two hundred signs of progress", 30.0)
            assert time.monotonic() - began > 3.0
            assert stage.view("one")["state"] == "loading"
            stage.gate("one").touch()
            assert asking.wait().status_code == 200
            assert states(stage, "one") == ["loading", "warming", "ready"]

    def test_without_progress_fails_and_can_be_tried_again(self, make_stage: MakeStage) -> None:
        stage = make_stage(START_TIMEOUT_SECONDS="0.5")
        stage.model("one", {"load_gate": str(stage.gate("one"))})
        with running_orchestrator(stage):
            response = stage.command("one", "start")
            assert (response.status_code, response.json()["reason"]) == (503, "start_timeout")
            assert "progress" in stage.view("one")["failure"]["message"]
            assert not stage.leftovers()
            stage.gate("one").touch()
            assert stage.start_model("one").pid
            assert stage.view("one")["failure"] is None


class TestDrain:
    def test_that_is_stuck_ends_at_its_deadline(self, make_stage: MakeStage) -> None:
        stage = make_stage(DRAIN_TIMEOUT_SECONDS="0.5")
        stage.model("one", {"chunks": ["data: 1\n\n", "data: 2\n\n"], "chunk_gate": str(stage.gate("never"))})
        with running_orchestrator(stage):
            stage.start_model("one")
            with open_stream(stage, model="one") as stream:
                assert next(stream.events()) == "1"
                stopping = Background(lambda: stage.command("one", "stop"))
                rest = list(stream.events())
            assert "[DONE]" not in rest
            assert json.loads(rest[-1])["error"]["code"] == "drained"
            assert stopping.wait().status_code == 200
            assert states(stage, "one")[-3:] == ["draining", "stopping", "gone"]

    def test_an_operators_own_deadline_goes_first(self, make_stage: MakeStage) -> None:
        stage = make_stage(DRAIN_TIMEOUT_SECONDS="60")
        stage.model("one", {"chunks": ["data: 1\n\n", "data: 2\n\n"], "chunk_gate": str(stage.gate("never"))})
        with running_orchestrator(stage):
            stage.start_model("one")
            with open_stream(stage, model="one") as stream:
                assert next(stream.events()) == "1"
                response = stage.http.post("/api/servers/one/stop", params={"drain_seconds": 0.2})
                assert response.status_code == 200
                assert json.loads(list(stream.events())[-1])["error"]["code"] == "drained"

    def test_an_answer_that_ends_in_time_is_whole(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        chunks = ["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"]
        stage.model("one", {"chunks": chunks, "chunk_gate": str(stage.gate("one"))})
        with running_orchestrator(stage):
            stage.start_model("one")
            with open_stream(stage, model="one") as stream:
                assert next(stream.events()) == "1"
                stopping = Background(lambda: stage.command("one", "stop"))
                eventually(lambda: "draining" in states(stage, "one"), "it drains")
                stage.gate("one").touch()
                assert list(stream.events()) == ["2", "[DONE]"]
            assert stopping.wait().status_code == 200
            assert ("stopping", "nothing runs on it any more") in transitions(stage, "one")


class TestTerm:
    @pytest.fixture
    def stage(self, make_stage: MakeStage) -> Stage:
        """A stream runs on `one`, a second request waits for it, `two` loads: none of them ends by itself."""
        stage = make_stage(room=2, SHUTDOWN_TIMEOUT_SECONDS="2")
        script = {"chunks": ["data: 1\n\n", "data: 2\n\n"], "chunk_gate": str(stage.gate("never")), "ignore_term": True}
        stage.model("one", script, limits={"concurrent": 1})
        stage.model("two", {"load_gate": str(stage.gate("never"))})
        return stage

    @pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
    def test_ends_all_at_once(self, stage: Stage, times: int) -> None:
        with running_orchestrator(stage):
            stage.start_model("one")
            with open_stream(stage, model="one") as stream:
                assert next(stream.events()) == "1"
                waiting, loading = (Background(lambda m=m: chat(stage, m)) for m in ("one", "two"))  # type: ignore[misc]
                eventually(lambda: stage.view("one")["waiting"] == 1 and stage.view("two")["pid"], "all is under way")
                # Whatever finds the interpreter of the fake server has children of its own for a moment.
                pids = eventually(
                    lambda: found if len(found := stage.leftovers()) == 2 else None, "each of the two is one process"
                )
                began = time.monotonic()
                stage.send(signal.SIGTERM)
                if times == 2:
                    eventually(lambda: "Shutting down" in stage.log_text(), "it has begun to end")
                    stage.send(signal.SIGTERM)
                    stage.wait(2.0)
                else:
                    events = list(stream.events())
                    assert "[DONE]" not in events
                    assert json.loads(events[-1])["error"]["code"] == "shutting_down"
                    assert [error_of(one.wait()) for one in (waiting, loading)] == [(503, "shutting_down")] * 2
                    assert stage.wait(GRACE_SECONDS) == 0
                assert time.monotonic() - began < GRACE_SECONDS
            eventually(lambda: all(map(is_gone, pids)), "no process is left", 2.0)
            assert not stage.leftovers()


def test_the_connection_of_a_stream_is_not_used_again(make_stage: MakeStage, tmp_path: Path) -> None:
    """llama-server closes it after each stream without saying so; a request sent on it would be lost."""
    stage, seen = make_stage(), tmp_path / "seen"
    stage.model("one", {"seen": str(seen)})
    with running_orchestrator(stage):
        with open_stream(stage, model="one") as stream:
            assert list(stream.events())[-1] == "[DONE]"
        assert stage.chat("one").status_code == 200
        asked = [
            {k.lower(): v for k, v in json.loads(line)["headers"].items()} for line in seen.read_text().splitlines()
        ]
        assert [headers.get("connection", "").lower() == "close" for headers in asked] == [True, False]


def chat(stage: Stage, model: str) -> httpx.Response:
    """A plain call by a client of its own."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{stage.base_url}/v1/chat/completions", json=body, timeout=30.0, trust_env=False)


def resident_bytes(pid: int) -> int:
    """What a process holds."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10
