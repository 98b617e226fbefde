"""Traces of requests, at a receiver that speaks OTLP."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.support import eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.otlp import Receiver, Span, running_receiver
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "what nobody may read"
TIMINGS = {"cache_n": 1, "prompt_n": 2, "predicted_n": 11, "predicted_ms": 5.0, "draft_n": 7, "draft_n_accepted": 5}
PLAIN = json.dumps({"choices": [{"message": {"content": SECRET}}], "timings": TIMINGS})
# The exporter waits for five seconds otherwise.
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


@pytest.fixture
def traced(make_orchestrator: MakeOrchestrator, receiver: Receiver, tmp_path: Path) -> Iterator[Orchestrator]:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "mine"} | SOON
    ours = make_orchestrator(FAKE_SERVER, environment=environment)
    ours.write_model("fake", tmp_path / "fake.gguf")
    write_script(tmp_path / "fake.gguf", {"plain": PLAIN, "seen": str(tmp_path / "seen")})
    with running_orchestrator(ours):
        yield ours


def chat(ours: Orchestrator, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": "fake", "messages": [{"role": "user", "content": SECRET}], **fields}
    return ours.http.post("/v1/chat/completions", json=body, headers=headers)


def spans_of(receiver: Receiver, name: str, count: int = 1) -> dict[str, Span]:
    """Spans by name, once those called `name`, the last ones to end, are there."""
    eventually(lambda: sum(s.name == name for s in receiver.spans()) >= count, f"{name} has come")
    return {span.name: span for span in receiver.spans()}


def test_a_request_that_loads_its_model(traced: Orchestrator, receiver: Receiver, tmp_path: Path) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "mine-1"}
    chat(traced, headers).raise_for_status()
    spans = spans_of(receiver, "POST /v1/chat/completions")
    assert set(spans) == {"POST /v1/chat/completions", "wait", "load", "chat fake"}
    gateway, wait, load, upstream = (spans[n] for n in ("POST /v1/chat/completions", "wait", "load", "chat fake"))
    assert {span.trace_id for span in spans.values()} == {TRACE}
    assert [gateway.parent, wait.parent, load.parent, upstream.parent] == [CALLER, gateway.id, wait.id, gateway.id]
    assert [span.kind for span in (gateway, wait, load, upstream)] == ["SERVER", "INTERNAL", "INTERNAL", "CLIENT"]
    # The load is told afterwards, from another clock.
    slack = 5_000_000
    assert gateway.start <= wait.start <= load.start + slack and load.end - slack <= wait.end <= upstream.start
    assert upstream.end <= gateway.end and not any(span.failed for span in spans.values())
    known = {"http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200}
    known |= {"gen_ai.request.model": "fake", "gen_ai.operation.name": "chat", "slipstream.request_id": "mine-1"}
    assert known.items() <= gateway.attributes.items()
    usage = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 11, "slipstream.drafted_tokens": 7}
    assert (
        usage | {"gen_ai.request.model": "fake", "slipstream.accepted_tokens": 5}
    ).items() <= upstream.attributes.items()
    assert SECRET.encode() not in b"".join(receiver.raw)
    assert all(found["service.name"] == "mine" for found in receiver.resources())
    [seen] = map(json.loads, (tmp_path / "seen").read_text().splitlines())
    assert seen["headers"]["traceparent"] == f"00-{TRACE}-{upstream.id}-01"


def test_log_and_metrics_lead_to_the_trace(traced: Orchestrator, receiver: Receiver) -> None:
    request_id = chat(traced).headers["x-request-id"]
    trace_id = spans_of(receiver, "POST /v1/chat/completions")["POST /v1/chat/completions"].trace_id
    line = eventually(lambda: next((x for x in traced.log_text().splitlines() if request_id in x), None), "its line")
    assert json.loads(line)["trace_id"] == trace_id
    page = traced.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}).text
    for name in ("request_seconds", "swap_wait_seconds"):
        assert re.search(rf'^slipstream_{name}_bucket.*# {{trace_id="{trace_id}"}}', page, re.M), name


def test_what_fails_says_so(traced: Orchestrator, receiver: Receiver, tmp_path: Path) -> None:
    assert traced.http.post("/v1/chat/completions", json={"model": "nobody"}).status_code == 404
    refused = spans_of(receiver, "POST /v1/chat/completions")["POST /v1/chat/completions"]
    assert not refused.failed and refused.attributes["error.type"] == "model_not_found"
    write_script(tmp_path / "bad.gguf", {"exit_in_load": 1})
    traced.write_model("bad", tmp_path / "bad.gguf")
    assert traced.chat("bad").status_code == 503
    eventually(lambda: sum(s.kind == "SERVER" for s in receiver.spans()) == 2, "the second request")
    failed = {span.name: span for span in receiver.spans()}
    for name in ("POST /v1/chat/completions", "wait"):
        assert failed[name].failed and failed[name].attributes["error.type"] == "server_start_failed"


def test_a_trace_that_is_not_sampled_is_not_sent(traced: Orchestrator, receiver: Receiver) -> None:
    chat(traced, {"traceparent": f"00-{TRACE}-{CALLER}-00"}).raise_for_status()
    chat(traced).raise_for_status()
    spans_of(receiver, "POST /v1/chat/completions")
    assert TRACE not in {span.trace_id for span in receiver.spans()}
    assert TRACE not in traced.http.get("/metrics", headers={"accept": "application/openmetrics-text"}).text


def test_a_receiver_that_does_not_answer_holds_nobody_up(traced: Orchestrator, receiver: Receiver) -> None:
    receiver.hangs.set()
    chat(traced).raise_for_status()
    assert receiver.asked.wait(10)
    for _ in range(5):
        chat(traced).raise_for_status()
    began = time.monotonic()
    traced.close()
    assert time.monotonic() - began < 10
    assert traced.leftovers() == []
    assert "Traceback" not in traced.log_text()


def test_what_is_left_is_sent_at_the_end(
    make_orchestrator: MakeOrchestrator, receiver: Receiver, tmp_path: Path
) -> None:
    ours = make_orchestrator(
        FAKE_SERVER, environment={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces"}
    )
    ours.write_model("fake", tmp_path / "fake.gguf")
    write_script(tmp_path / "fake.gguf", {"plain": PLAIN})
    with running_orchestrator(ours):
        chat(ours).raise_for_status()
    assert "POST /v1/chat/completions" in {span.name for span in receiver.spans()}


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is none of"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"},
            "cannot be used: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_start_with_a_sentence(
    make_orchestrator: MakeOrchestrator, environment: dict[str, str], said: str
) -> None:
    ours = make_orchestrator(environment=environment)
    ours.launch()
    assert ours.wait(20) == 1
    assert said in ours.log_text() and "Traceback" not in ours.log_text()
