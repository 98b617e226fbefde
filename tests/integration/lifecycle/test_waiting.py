"""What becomes of requests that wait: comments while they do, an end to the wait, an order; and rest after failures."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.lifecycle.asking import Json, Steady, error_of, states, transitions
from tests.integration.lifecycle.conftest import MakeStage, Stage
from tests.integration.orchestrator.streams import MESSAGES, Background, Stream, open_stream
from tests.support import eventually
from tests.support.orchestrator import running_orchestrator

pytestmark = pytest.mark.integration

CHUNKS = ["data: 1\n\n", "data: [DONE]\n\n"]


def comments(stream: Stream) -> Iterator[str]:
    """Keep-alive comments of a stream."""
    return (line for line in stream.lines if line.startswith(":"))


class TestStream:
    def test_that_waits_for_a_load_is_kept_alive_and_then_answered(self, make_stage: MakeStage) -> None:
        stage = make_stage(KEEP_ALIVE_SECONDS="0.1")
        stage.model("one", {"chunks": CHUNKS, "load_gate": str(stage.gate("one"))})
        with running_orchestrator(stage), open_stream(stage, model="one") as stream:
            assert stream.response.status_code == 200
            assert stream.response.headers["content-type"].startswith("text/event-stream")
            assert stream.response.headers["x-accel-buffering"] == "no"
            waiting = comments(stream)
            assert all("'one'" in next(waiting) for _ in range(3))
            stage.gate("one").touch()
            assert list(stream.events()) == ["1", "[DONE]"]

    def test_whose_load_fails_ends_with_an_error(self, make_stage: MakeStage) -> None:
        stage = make_stage(KEEP_ALIVE_SECONDS="0.1")
        stage.model("one", {"exit_after_gate": 1, "complaint": "error: broken", "load_gate": str(stage.gate("one"))})
        with running_orchestrator(stage), open_stream(stage, model="one") as stream:
            next(comments(stream))
            stage.gate("one").touch()
            (event,) = stream.events()
            assert '"code": "server_start_failed"' in event and "error: broken" in event


class TestWait:
    def test_ends_at_its_own_deadline(self, make_stage: MakeStage) -> None:
        stage = make_stage(KEEP_ALIVE_SECONDS="0.1")
        stage.model("one", {"load_gate": str(stage.gate("never"))}, limits={"wait_seconds": 0.4})
        with running_orchestrator(stage):
            assert error_of(stage.chat("one")) == (503, "wait_timeout")
            with open_stream(stage, model="one") as stream:
                (event,) = stream.events()
            assert '"code": "wait_timeout"' in event
            assert stage.view("one")["waiting"] == 0

    def test_is_in_order_of_priority(self, make_stage: MakeStage) -> None:
        """Both wait for the room of the busy one; the higher one gets it, though it came later."""
        stage = make_stage(room=1)
        busy_gate, low_gate = stage.gate("busy"), stage.gate("low")
        stage.model("busy", {"chunks": CHUNKS, "chunk_gate": str(busy_gate)})
        stage.model("low", {"load_gate": str(low_gate)}, keep={"priority": -1})
        stage.model("high", keep={"priority": 1})
        with running_orchestrator(stage), open_stream(stage, model="busy") as stream:
            assert next(stream.events()) == "1"
            low = Background(lambda: chat(stage, "low"))
            eventually(lambda: stage.view("low")["waiting"] == 1, "the low one waits")
            high = Background(lambda: chat(stage, "high"))
            eventually(lambda: stage.view("high")["waiting"] == 1, "the high one waits")
            assert "'busy'" in stage.view("high")["waits_for"]
            busy_gate.touch()
            assert list(stream.events()) == ["[DONE]"]
            assert high.wait().status_code == 200
            low_gate.touch()
            assert low.wait().status_code == 200
            assert first_start(stage, "high") < first_start(stage, "low")

    def test_of_a_change_without_room_for_both_ends_well(self, make_stage: MakeStage) -> None:
        stage = make_stage(room=1)
        stage.model("one")
        with running_orchestrator(stage):
            stage.start_model("one")
            stage.script("one", load_gate=str(stage.gate("new")), plain='{"from": "new"}')
            changing = Background(lambda: put(stage, {"flags": {"ctx_size": 512}}))
            eventually(lambda: "gone" in states(stage, "one") and stage.view("one")["pid"], "the new one loads")
            waiting = Background(lambda: chat(stage, "one"))
            eventually(lambda: stage.view("one")["waiting"] == 1, "a request waits")
            stage.gate("new").touch()
            assert waiting.wait().json() == {"from": "new"}
            assert changing.wait().status_code == 200


def test_a_change_with_room_for_both_is_served_by_the_old_one_until_the_new_one_is_ready(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(room=2)
    stage.model("one", {"plain": '{"from": "old"}', "chunks": CHUNKS})
    with running_orchestrator(stage):
        stage.start_model("one")
        stage.script("one", load_gate=str(stage.gate("new")), plain='{"from": "new"}', chunks=CHUNKS)
        with Steady(stage, "one") as steady:
            changing = Background(lambda: put(stage, {"flags": {"ctx_size": 512}}))
            eventually(lambda: len(stage.leftovers()) == 2, "the new one loads")
            seen = steady.count
            eventually(lambda: steady.count > seen + 4, "the old one answers")
            assert '{"from": "new"}' not in steady.answers
            stage.gate("new").touch()
            assert changing.wait().status_code == 200
            eventually(lambda: '{"from": "new"}' in steady.answers, "the new one answers")
        assert steady.errors == []
        assert "512" in stage.view("one")["argv"]
        assert len(stage.leftovers()) == 1
        plain = [text for text in steady.answers if text.startswith("{")]
        assert plain == sorted(plain, key=lambda text: "new" in text), "no answer of the old one after one of the new"


class TestKeep:
    def test_an_idle_one_ends_and_one_that_is_wanted_stays(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        for name in ("wanted", "asked"):
            stage.model(name, keep={"idle_seconds": 0.2})
        with running_orchestrator(stage):
            kept = stage.start_model("wanted")
            assert stage.chat("asked").status_code == 200
            eventually(lambda: stage.view("asked")["state"] == "stopped", "the idle one ends")
            assert any(why.startswith("idle for") for _, why in transitions(stage, "asked"))
            assert stage.view("wanted")["pid"] == kept.pid
            assert stage.chat("asked").status_code == 200, "a request brings it back"

    def test_of_a_group_one_is_loaded_at_a_time(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        for name in ("one", "two"):
            stage.model(name, keep={"group": "big"})
        stage.model("other")
        with running_orchestrator(stage):
            for name in ("other", "one", "two", "one"):
                assert stage.chat(name).status_code == 200
                assert len(stage.leftovers()) <= 2
            assert [stage.view(name)["state"] for name in ("one", "two", "other")] == ["ready", "stopped", "ready"]
            assert any("of group 'big' one is loaded at a time" in why for _, why in transitions(stage, "one"))

    def test_preload_starts_with_the_orchestrator(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        stage.model("one", keep={"preload": True})
        stage.model("two")
        with running_orchestrator(stage):
            eventually(lambda: stage.view("one")["state"] == "ready", "it starts unasked")
            assert (stage.view("one")["desired"], stage.view("two")["state"]) == ("stopped", "stopped")

    def test_a_pinned_one_stays_and_goes_by_command(self, make_stage: MakeStage) -> None:
        stage = make_stage(room=1)
        stage.model("pinned", keep={"pinned": True, "idle_seconds": 0.1})
        stage.model("two")
        with running_orchestrator(stage):
            assert stage.chat("pinned").status_code == 200
            refused = stage.chat("two")
            assert error_of(refused) == (503, "no_room")
            assert "'pinned'" in refused.json()["error"]["message"]
            assert stage.view("pinned")["state"] == "ready"
            stage.command("pinned", "stop").raise_for_status()
            assert stage.chat("two").status_code == 200


class TestQuarantine:
    def rest_of(self, stage: Stage) -> float:
        """Seconds that it rests from now."""
        quarantine = stage.view("one")["quarantine"]
        return 0.0 if quarantine is None else float(quarantine["until"]) - time.time()

    def test_grows_is_told_and_can_be_lifted(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        stage.model("one", {"complaint": "error: broken", "exit_in_load": 1})
        with running_orchestrator(stage):
            assert error_of(stage.chat("one")) == (503, "server_start_failed")
            assert stage.view("one")["quarantine"]["strikes"] == 1
            assert 8 < self.rest_of(stage) <= 10
            refused = stage.chat("one")
            assert error_of(refused) == (503, "quarantined")
            assert 8 <= int(refused.headers["retry-after"]) <= 10
            assert "error: broken" in refused.json()["error"]["message"]
            assert "/clear" in refused.json()["error"]["message"]
            assert states(stage, "one").count("loading") == 1, "it was not tried again"

            stage.script("one")
            assert stage.http.post("/api/servers/one/clear").raise_for_status().json()["quarantine"] is None
            assert stage.chat("one").status_code == 200

    def test_is_longer_with_each_failure(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        stage.model("one")
        with running_orchestrator(stage):
            assert stage.chat("one").status_code == 200
            stage.script("one", exit_in_load=1)
            os.kill(stage.view("one")["pid"], signal.SIGKILL)
            eventually(lambda: stage.view("one")["state"] == "failed", "its end is seen")
            # The death of one that served is forgiven once: the next request tries it, and fails.
            assert self.rest_of(stage) == 0.0
            assert error_of(stage.chat("one")) == (503, "server_start_failed")
            assert stage.view("one")["quarantine"]["strikes"] == 2
            assert 18 < self.rest_of(stage) <= 20

    def test_does_not_bind_an_operator(self, make_stage: MakeStage) -> None:
        stage = make_stage()
        stage.model("one", {"exit_in_load": 1})
        with running_orchestrator(stage):
            assert stage.chat("one").status_code == 503
            stage.script("one")
            assert stage.start_model("one").pid
            assert stage.view("one")["quarantine"] is None


def first_start(stage: Stage, model: str) -> int:
    """Number of the event by which it began to load."""
    response = stage.http.get("/api/events", params={"follow": "false"}).raise_for_status()
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    return next(n for n, line in enumerate(lines) if f'"model":"{model}"' in line and '"state":"loading"' in line)


def chat(stage: Stage, model: str) -> httpx.Response:
    """A plain call by a client of its own."""
    body: Json = {"model": model, "messages": MESSAGES}
    return httpx.post(f"{stage.base_url}/v1/chat/completions", json=body, timeout=30.0, trust_env=False)


def put(stage: Stage, body: Json) -> httpx.Response:
    """A command by a client of its own."""
    return httpx.put(f"{stage.base_url}/api/servers/one", json=body, timeout=30.0, trust_env=False)
