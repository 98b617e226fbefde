"""Metrics and log lines of requests, against what the answers of a real drafting server say of themselves."""

import json
import os
import re
import signal
import time
from typing import Any

import httpx
import pytest

from tests import FAKE_SERVER
from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import open_stream
from tests.support import eventually
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration

SECRET = "what nobody may read"
NAMES = (
    "slipstream_request_seconds",
    "slipstream_time_to_first_token_seconds",
    "slipstream_time_per_output_token_seconds",
    "slipstream_inter_token_latency_seconds",
)


def metrics(house: Orchestrator) -> dict[str, float]:
    """Count and sum of each histogram of `toy`."""
    return {
        f"{name}_{part}": house.metric(f"{name}_{part}", model="toy") or 0.0
        for name in NAMES
        for part in ("count", "sum")
    }


def line_of(house: Orchestrator, request_id: str) -> dict[str, Any]:
    """The line of a request, once it is there."""
    found = eventually(lambda: [x for x in house.log_text().splitlines() if request_id in x], "its line is written")
    assert len(found) == 1
    line: dict[str, Any] = json.loads(found[0])
    return line


def streamed(house: Orchestrator, **fields: Any) -> dict[str, Any]:
    """Timings of a streamed answer."""
    with open_stream(house, model="toy", temperature=0, **fields) as stream:
        return dict(json.loads(list(stream.events())[-2])["timings"])


def test_metrics_are_what_the_answers_say(house: Orchestrator) -> None:
    house.chat("toy").raise_for_status()
    before, began = metrics(house), time.monotonic()
    timings = []
    for number in range(6):
        timings.append(streamed(house, max_tokens=100 + 40 * number))
        timings.append(house.chat("toy", temperature=0, max_tokens=50 + 30 * number).json()["timings"])
    took = time.monotonic() - began
    eventually(lambda: metrics(house)[f"{NAMES[0]}_count"] == before[f"{NAMES[0]}_count"] + 12, "all are counted")
    found = {name: value - before[name] for name, value in metrics(house).items()}
    expected = sum(t["predicted_ms"] / (t["predicted_n"] - 1) for t in timings) / 1000
    assert found[f"{NAMES[2]}_sum"] == pytest.approx(expected, rel=1e-6)
    assert [found[f"{name}_count"] for name in NAMES[:3]] == [12, 12, 12]
    assert 0 < found[f"{NAMES[1]}_sum"] < found[f"{NAMES[0]}_sum"] <= took
    assert found[f"{NAMES[3]}_count"] > 0 and found[f"{NAMES[3]}_sum"] < found[f"{NAMES[0]}_sum"]
    assert house.metric("slipstream_requests_running", model="toy") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_line_of_a_request(house: Orchestrator, stream: bool) -> None:
    body = {"model": "alias-of-toy", "max_tokens": 40, "temperature": 0, "stream": stream}
    body["messages"] = [{"role": "user", "content": SECRET}]
    answer = house.http.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer my-key"})
    said = answer.text.split("data: ")[-2] if stream else answer.text
    timings = json.loads(said)["timings"]
    line = line_of(house, answer.headers["x-request-id"])
    known = {"route": "/v1/chat/completions", "model": "toy", "status": 200, "outcome": "ok", "level": "info"}
    known |= {"input_tokens": timings["prompt_n"] + timings["cache_n"], "output_tokens": timings["predicted_n"]}
    known |= {"drafted_tokens": timings["draft_n"], "accepted_tokens": timings["draft_n_accepted"]}
    assert known.items() <= line.items()
    assert 0 <= line["waited_seconds"] < line["time_to_first_token_seconds"] < line["seconds"]
    assert SECRET not in house.log_text() and "my-key" not in house.log_text()


@pytest.mark.parametrize(
    "path, body, has_timings",
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}, False),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": True}, False),
        ("/v1/responses", {"max_output_tokens": 9, "input": "x"}, False),
        ("/v1/responses", {"max_output_tokens": 9, "input": "x", "stream": True}, True),
        ("/v1/completions", {"max_tokens": 9, "prompt": "x"}, True),
        ("/completion", {"n_predict": 9, "prompt": "x", "n_probs": 3, "stream": True}, True),
    ],
)
def test_every_dialect(house: Orchestrator, path: str, body: dict[str, Any], has_timings: bool) -> None:
    before = metrics(house)
    answer = house.http.post(path, json={"model": "toy", **body})
    assert answer.status_code == 200
    line = line_of(house, answer.headers["x-request-id"])
    assert line["output_tokens"] == 9
    found = metrics(house)
    assert found[f"{NAMES[2]}_count"] - before[f"{NAMES[2]}_count"] == has_timings
    is_known = has_timings or "stream" in body
    assert found[f"{NAMES[1]}_count"] - before[f"{NAMES[1]}_count"] == is_known


def test_a_log_that_nobody_reads_stops_neither_answers_nor_the_end(make_orchestrator: MakeOrchestrator) -> None:
    ours = make_orchestrator(FAKE_SERVER)
    ours.home.mkdir(parents=True)
    os.mkfifo(ours.log)
    with open(os.open(ours.log, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as log:
        ours.launch()
        said = bytearray()

        def address() -> re.Match[bytes] | None:
            said.extend(log.read(1 << 16) or b"")
            return re.search(rb"Uvicorn running on (http://[^ ]+) ", said)

        url = eventually(address, "it listens")[1].decode()
        # A pipe holds 64 KiB.
        with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
            for _ in range(500):
                assert client.get("/v1/models").status_code == 200
        ours.send(signal.SIGTERM)
        assert ours.wait(10) == 0
