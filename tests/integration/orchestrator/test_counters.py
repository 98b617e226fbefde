"""Counters of a model over ends and starts of its servers, while Prometheus looks on: no fall, no spike, no loss."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.integration.orchestrator.conftest import MakeOrchestrator
from tests.integration.orchestrator.streams import Background
from tests.support import Samples, eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

# Of our names, those at the server's `timings`.
TIMINGS = {
    "slipstream_slot_predicted_tokens_total": "predicted_n",
    "slipstream_slot_draft_tokens_total": "draft_n",
    "slipstream_slot_accepted_tokens_total": "draft_n_accepted",
    "slipstream_slot_verification_steps_total": "draft_n_steps",
}
_GRAIN_SECONDS = 0.02


def counted(house: Orchestrator, model: str = "toy") -> dict[str, float]:
    """Sums over slots, by the name in `timings`."""
    values = Samples.parse(house.http.get("/metrics").raise_for_status().text).values
    return {
        field: sum(v for (name, labels), v in values.items() if name == ours and ("model", model) in labels)
        for ours, field in TIMINGS.items()
    }


def said(answer: httpx.Response) -> dict[str, float]:
    timings = answer.raise_for_status().json()["timings"]
    return {field: timings[field] for field in TIMINGS.values()}


def added(*parts: dict[str, float]) -> dict[str, float]:
    return {field: sum(part[field] for part in parts) for field in TIMINGS.values()}


def chats(house: Orchestrator, tokens: int = 60, **fields: Any) -> dict[str, float]:
    return added(*(said(house.chat("toy", f"question {i}", max_tokens=tokens, **fields)) for i in range(3)))


@contextmanager
def watched(house: Orchestrator) -> Iterator[list[Samples]]:
    """Scrape all the time; afterwards no counter has ever fallen, nor gone, of the models that were watched."""
    found: list[Samples] = []
    done = threading.Event()

    def look() -> None:
        with httpx.Client(base_url=house.base_url, timeout=10.0, trust_env=False) as client:
            while not done.wait(_GRAIN_SECONDS):
                found.append(Samples.parse(client.get("/metrics").raise_for_status().text))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
    assert len(found) > 2
    for before, after in pairwise(found):
        for series, value in before.values.items():
            if series[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert after.values[series] >= value, series


@pytest.fixture
def own(make_orchestrator: MakeOrchestrator) -> Iterator[Orchestrator]:
    made = make_orchestrator()
    with running_orchestrator(made):
        yield made


def test_all_that_was_counted_is_there_after_a_stop_that_nobody_scraped_before(own: Orchestrator) -> None:
    own.start_model("toy")
    answers = chats(own)
    own.command("toy", "stop").raise_for_status()
    assert counted(own) == answers
    assert answers["draft_n_accepted"] > 0


def test_counters_go_on_over_restarts_and_swaps_under_traffic(own: Orchestrator) -> None:
    own.start_model("toy")
    parts = []
    with watched(own) as scrapes:
        for _ in range(2):
            parts.append(chats(own))
            own.command("toy", "restart").raise_for_status()
        parts.append(chats(own))
        own.http.post("/api/swap", json={"start": "other"}).raise_for_status()
        assert own.view("toy")["state"] == "stopped"
        assert counted(own) == added(*parts)
        own.http.post("/api/swap", json={"start": "toy"}).raise_for_status()
        parts.append(chats(own))
        own.command("toy", "stop").raise_for_status()
    assert counted(own) == added(*parts)
    # Between two scrapes no more is counted than was generated at all: a spike would be a whole server's count.
    biggest = max(b - a for a, b in _pairs(scrapes, "slipstream_slot_predicted_tokens_total"))
    assert biggest <= 3 * 60


def test_a_change_of_flags_hands_over_with_both_counted(own: Orchestrator) -> None:
    own.start_model("toy")
    with watched(own):
        parts = [chats(own)]
        slow = Background(lambda: own.chat("toy", max_tokens=2000, ignore_eos=True))
        eventually(lambda: any(own.metric("slipstream_slot_busy", model="toy", slot=n) for n in "01"), "it is at work")
        own.http.put("/api/servers/toy", json={"flags": {"spec-draft-n-max": 1}}).raise_for_status()
        after = chats(own)
        parts += [after, said(slow.wait())]
        eventually(lambda: len(own.view("toy")["instances"]) == 1, "the earlier one has gone")
    assert counted(own) == added(*parts)
    now, before = ({field: flags(own, which, field) for field in _FLAGS} for which in ("current", "previous"))
    assert now == {field: after[name] for field, name in _FLAGS.items()}
    assert before == {field: parts[0][name] + parts[2][name] for field, name in _FLAGS.items()}


def test_a_kill_loses_what_came_after_the_last_scrape_and_nothing_else(own: Orchestrator) -> None:
    child = own.start_model("toy")
    seen = chats(own)
    assert counted(own) == seen
    with watched(own):
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: own.view("toy")["pid"] not in (None, child.pid), "another one runs")
        eventually(lambda: own.view("toy")["state"] == "ready", "it is ready")
        seen = added(seen, chats(own))
    assert counted(own) == seen


_FLAGS = {"predicted_tokens": "predicted_n", "draft_tokens": "draft_n", "accepted_tokens": "draft_n_accepted"}


def flags(house: Orchestrator, which: str, field: str) -> float | None:
    return house.metric(f"slipstream_flags_{field}", model="toy", flags=which)


def _pairs(scrapes: list[Samples], name: str) -> Iterator[tuple[float, float]]:
    for before, after in pairwise(scrapes):
        for series, value in after.values.items():
            if series[0] == name and series in before.values:
                yield before.values[series], value
