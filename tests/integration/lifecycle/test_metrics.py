"""What the metrics tell of swaps, failures and events, over servers whose every phase is held."""

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.integration.lifecycle.asking import Json
from tests.integration.lifecycle.conftest import NEEDS_BYTES, MakeStage, Stage
from tests.integration.orchestrator.streams import Background, open_stream
from tests.support import eventually
from tests.support.orchestrator import running_orchestrator

pytestmark = pytest.mark.integration

CHUNKS = ["data: 1\n\n", "data: [DONE]\n\n"]


def count(stage: Stage, name: str, model: str, part: str = "count", **labels: str) -> float:
    """A part of a histogram of swaps; 0 where the model has none."""
    return stage.metric(f"slipstream_{name}_{part}", model=model, **labels) or 0.0


def failures(stage: Stage, model: str, reason: str) -> float | None:
    return stage.metric("slipstream_server_failures_total", model=model, reason=reason)


def at(stage: Stage, model: str, event: str) -> float | None:
    return stage.metric("slipstream_event_timestamp_seconds", model=model, event=event)


def events(stage: Stage, model: str) -> list[Json]:
    """The log of transitions."""
    text = stage.http.get("/api/events", params={"follow": "false"}).raise_for_status().text
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    return [event for event in told if event["model"] == model]


def test_a_swap_is_timed_from_the_first_request_on_with_the_drain_before_it(make_stage: MakeStage) -> None:
    stage = make_stage(room=1)
    chunk_gate, load_gate = stage.gate("chunk"), stage.gate("load")
    stage.model("old", {"chunks": CHUNKS, "chunk_gate": str(chunk_gate)})
    stage.model("new", {"load_gate": str(load_gate)})
    with running_orchestrator(stage):
        with open_stream(stage, model="old") as stream:
            assert next(stream.events()) == "1"
            assert stage.metric("slipstream_swap_queue_length", model="new") == 0
            began = time.monotonic()
            asking = Background(lambda: stage.chat("new"))
            eventually(lambda: stage.metric("slipstream_swap_queue_length", model="new") == 1, "it waits")
            waits_since = time.monotonic()
            eventually(lambda: stage.view("old")["state"] == "draining", "the old one has had its turn")
            chunk_gate.touch()
            assert list(stream.events()) == ["[DONE]"]
        drained = time.monotonic()
        eventually(lambda: stage.view("new")["loading_seconds"], "it loads")
        assert stage.view("new")["expected_load_seconds"] is None, "it never has been"
        assert stage.metric("slipstream_swap_queue_length", model="new") == 1
        assert (count(stage, "swap_seconds", "new"), count(stage, "swap_wait_seconds", "new")) == (0, 0)
        assert stage.metric("slipstream_swap_seconds_count", model="new") == 0, "begins at 0 before it ends"
        load_gate.touch()
        assert asking.wait().status_code == 200
        took = time.monotonic() - began
        assert stage.metric("slipstream_swap_queue_length", model="new") == 0
        for name in ("swap_seconds", "swap_wait_seconds"):
            assert count(stage, name, "new") == 1
            assert drained - waits_since < count(stage, name, "new", "sum") < took, name
        assert stage.chat("new").status_code == 200
        assert count(stage, "swap_wait_seconds", "new") == 2, "granted at once"
        assert count(stage, "swap_seconds", "new") == 1
        assert stage.view("new")["loading_seconds"] is None


def test_a_wait_that_is_refused_is_no_wait(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.model("one", {"load_gate": str(stage.gate("never"))}, limits={"wait_seconds": 0.2})
    with running_orchestrator(stage):
        assert stage.chat("one").status_code == 503
        assert stage.metric("slipstream_swap_wait_seconds_count", model="one") == 0
        assert stage.metric("slipstream_swap_queue_length", model="one") == 0


def test_failures_are_counted_with_their_reason_and_are_no_restarts(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.model("one")
    with running_orchestrator(stage):
        assert failures(stage, "one", "killed") is None, "never started"
        pid = stage.start_model("one").pid
        assert failures(stage, "one", "killed") == failures(stage, "one", "out_of_memory") == 0
        loaded = at(stage, "one", "loaded")
        assert loaded is not None and at(stage, "one", "failed") is None
        stage.script("one", complaint="ggml_backend_cuda: out of memory", exit_in_load=1)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: failures(stage, "one", "killed") == 1, "its death is counted")
        eventually(lambda: failures(stage, "one", "out_of_memory") == 1, "and the start that failed after it")
        eventually(lambda: stage.view("one")["state"] == "failed", "it rests")
        assert stage.metric("slipstream_server_restarts_total", model="one") == 1
        assert stage.metric("slipstream_server_state", model="one", state="failed") == 1
        assert stage.metric("slipstream_server_info", model="one") is None
        failed = at(stage, "one", "failed")
        assert failed is not None and loaded < failed <= time.time()
        assert at(stage, "one", "ended") is None, "it has not ended by intent"
        reasons = [event["failure"] for event in events(stage, "one") if event["failure"]]
        assert list(dict.fromkeys(reasons)) == ["killed", "out_of_memory"]


def test_a_change_of_flags_is_an_event_that_names_them(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.model("one")
    with running_orchestrator(stage):
        stage.start_model("one")
        first = at(stage, "one", "loaded")
        stage.command("one", "restart").raise_for_status()
        eventually(lambda: at(stage, "one", "ended"), "the first one has ended")
        assert at(stage, "one", "flags") is None, "it runs as before"
        flags: dict[str, Any] = {"flags": {"ctx_size": 512}}
        stage.http.put("/api/servers/one", json=flags).raise_for_status()
        changed = [event for event in events(stage, "one") if event["changes"]]
        assert [(e["state"], e["changes"]) for e in changed] == [("ready", ["ctx-size"])]
        assert changed[0]["why"] == "loaded and warmed up; otherwise than before: ctx-size"
        assert at(stage, "one", "flags") == at(stage, "one", "loaded") == changed[0]["at"]
        assert first is not None and changed[0]["at"] > first
        assert count(stage, "swap_seconds", "one") == 3
        assert stage.view("one")["expected_load_seconds"] is None
        stage.script("one", load_gate=str(stage.gate("load")))
        again = Background(lambda: stage.command("one", "restart"))
        eventually(lambda: stage.view("one")["loading_seconds"], "a third one loads beside it")
        assert stage.view("one")["expected_load_seconds"] > 0
        stage.gate("load").touch()
        again.wait()


def test_devices_tell_what_is_set_aside(make_stage: MakeStage) -> None:
    stage = make_stage(room=3, ACCELERATOR="cuda")
    stage.model("one")
    with running_orchestrator(stage):
        of: dict[str, str] = {"host": "local", "device": "host"}
        assert stage.metric("slipstream_device_budget_bytes", **of) == 3 * NEEDS_BYTES
        assert stage.metric("slipstream_device_reserved_bytes", **of) == 0
        stage.start_model("one")
        assert stage.metric("slipstream_device_reserved_bytes", **of) == NEEDS_BYTES
        info = stage.metric("slipstream_server_info", model="one", host="local", spec_type="none")
        assert info == 1
        assert stage.metric("slipstream_host_accelerators", host="local") == 0
        assert stage.metric("slipstream_host_accelerators_expected", host="local") == 1
        reason = "CUDA is expected and not used"
        assert reason in stage.log_text()
        ready = stage.http.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "no_accelerator") and reason in ready.json()["detail"]
        assert stage.http.get("/healthz").status_code == 200 and stage.chat("one").status_code == 200


def test_series_end_with_the_model_file(make_stage: MakeStage) -> None:
    stage = make_stage()
    for name in ("one", "two"):
        stage.model(name)
    with running_orchestrator(stage):
        for name in ("one", "two"):
            assert stage.chat(name).status_code == 200
        stage.command("one", "stop").raise_for_status()
        assert at(stage, "one", "ended") is not None
        (stage.models_dir / "one.yaml").unlink()
        # Which reads the folder; a scrape does so when that was some time ago.
        stage.http.get("/api/models").raise_for_status()
        page = stage.http.get("/metrics").raise_for_status().text
        assert 'model="one"' not in page
        assert 'slipstream_swap_seconds_count{model="two"} 1.0' in page
