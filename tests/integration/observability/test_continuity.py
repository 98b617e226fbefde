"""Counters under kill, swap, change of flags and restart: no fall, no spike, nothing counted that no client saw."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.integration.observability.steady import Steady, answers_go_on, steady_traffic
from tests.support import ToyBox, eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.prometheus import Prometheus, Series, Target, running_prometheus

pytestmark = pytest.mark.integration

INTERVAL_SECONDS = 0.1
WINDOW_SECONDS = 1.0
# A count and the chunk that tells of it reach their readers at different times: the chunk comes through the gateway,
# and a sample has the time at which its scrape began, while its figures are of up to one timeout later.
LAG_SECONDS = 0.5
ANSWER_TOKENS = 120
LONGEST_DRAFT_TOKENS = 3
# What a broken answer can have counted that its client never saw: no more than a whole one.
UNSEEN = {
    "predicted_tokens": ANSWER_TOKENS,
    "predicted_seconds": 1.0,
    "draft_tokens": ANSWER_TOKENS * LONGEST_DRAFT_TOKENS,
    "accepted_tokens": ANSWER_TOKENS,
    "verification_steps": ANSWER_TOKENS,
}
SLOT_FIGURES = {f"slipstream_slot_{figure}_total": figure for figure in UNSEEN} | {
    "slipstream_slot_accepted_tokens_per_position_total": "accepted_tokens"
}
MODEL_FIGURES = {
    "slipstream_accepted_length_tokens_count": "verification_steps",
    "slipstream_accepted_length_tokens_bucket": "verification_steps",
    "slipstream_accepted_length_tokens_sum": "accepted_tokens",
    "llamacpp:tokens_predicted_total": "predicted_tokens",
}
# One a request, whatever became of it.
PER_REQUEST = (
    *("slipstream_request_seconds", "slipstream_time_to_first_token_seconds", "slipstream_swap_wait_seconds"),
    *("slipstream_time_per_output_token_seconds",),
)
Most = Callable[[str | None, float, float], float]


@dataclass
class Scenario:
    """What happened, seen from the clients and from Prometheus."""

    prometheus: Prometheus
    clients: tuple[Steady, ...]
    began: float
    restarted: tuple[float, float]
    ended: float

    def series(self, name: str) -> list[Series]:
        """All samples as they were scraped."""
        found = self.prometheus.raw(f'{{__name__="{name}",model="toy"}}', self.ended, self.ended - self.began)
        assert found, f"{name} was never scraped"
        return found

    def seen(self, figure: str, slot: str | None, start: float, end: float) -> float:
        """The most that can have been counted between two Unix times; of both slots without one."""
        clients = [client for client in self.clients if slot in (None, str(client.slot))]
        return sum(c.between(figure, start, end) + UNSEEN[figure] * c.broken(start, end) for c in clients)

    def ends(self, start: float, end: float) -> float:
        """The most requests that can have been counted: those that ended, and those that run."""
        return sum(client.ended(start, end) + 1 for client in self.clients)


@pytest.fixture(scope="module")
def scenario(patched_server: Path, toys: ToyBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    home = tmp_path_factory.mktemp("continuity")
    house = Orchestrator(home / "house", patched_server, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    threads = {"threads": 1, "spec_draft_threads": 1}
    speculation = {"type": "draft-mtp", "n_max": LONGEST_DRAFT_TOKENS}
    mtp, pair = toys.mtp(noise=0.2).path, toys.pair().path
    house.write_model("toy", mtp, speculation=speculation, server=threads | {"ctx_size": 4096, "parallel": 2})
    house.write_model("other", pair, server=threads | {"ctx_size": 2048, "parallel": 1})
    with running_orchestrator(house):
        house.start_model("toy")
        address = house.base_url.removeprefix("http://")
        # The restart must come back under the address that Prometheus asks.
        house.settings = {**house.settings, "PORT": address.rpartition(":")[2]}
        prometheus = Prometheus(home / "prometheus", [Target("slipstream", address)], interval_seconds=INTERVAL_SECONDS)
        clients = (Steady(house, "toy", 0, ANSWER_TOKENS), Steady(house, "toy", 1, ANSWER_TOKENS))
        with running_prometheus(prometheus):
            began = prometheus.scraped("slipstream")
            with steady_traffic(*clients):
                restarted = _everything_that_breaks(house, clients)
            ended = prometheus.scraped("slipstream")
            yield Scenario(prometheus, clients, began, restarted, ended)


def _everything_that_breaks(house: Orchestrator, clients: tuple[Steady, ...]) -> tuple[float, float]:
    """Kill, swap away and back, change flags, restart the orchestrator; Unix times of the last."""
    answers_go_on(*clients)
    for _ in range(2):
        os.kill(house.child("toy").pid, signal.SIGKILL)
        answers_go_on(*clients)
    house.http.post("/api/swap", json={"start": "other", "stop": ["toy"]}).raise_for_status()
    eventually(lambda: house.view("toy")["state"] == "ready", "a request brings it back", 30.0)
    answers_go_on(*clients)
    changed = httpx.put(f"{house.base_url}/api/servers/toy", json={"flags": {"ctx_size": 8192}}, timeout=60.0)
    changed.raise_for_status()
    answers_go_on(*clients)
    restarted = time.time()
    house.send(signal.SIGTERM)
    house.wait()
    house.start()
    answers_go_on(*clients)
    return restarted, time.time()


@pytest.mark.parametrize("name", [*SLOT_FIGURES, *MODEL_FIGURES, *(f"{name}_count" for name in PER_REQUEST)])
def test_counters_fall_only_where_the_orchestrator_restarts(scenario: Scenario, name: str) -> None:
    for series in scenario.series(name):
        pairs = list(pairwise(series.points))
        falls = [(a, b) for a, b in pairs if b[1] < a[1]]
        at_the_restart = [(a, b) for a, b in falls if a[0] <= scenario.restarted[1] and b[0] >= scenario.restarted[0]]
        assert falls == at_the_restart and len(falls) <= 1, f"{name}{series.labels} falls: {falls}"
        assert len(pairs) > 20 and (series.points[-1][1] > 0 or "bucket" in name or "position" in series.labels)


@pytest.mark.parametrize("name", [*SLOT_FIGURES, *MODEL_FIGURES])
def test_rates_are_never_above_what_clients_saw(scenario: Scenario, name: str) -> None:
    figure = (SLOT_FIGURES | MODEL_FIGURES)[name]
    _require_no_spike(scenario, name, lambda slot, start, end: scenario.seen(figure, slot, start, end))


@pytest.mark.parametrize("name", PER_REQUEST)
def test_requests_are_never_more_than_there_were(scenario: Scenario, name: str) -> None:
    _require_no_spike(scenario, f"{name}_count", lambda slot, start, end: scenario.ends(start, end))


@pytest.mark.parametrize("name", SLOT_FIGURES)
def test_nothing_is_counted_twice_and_little_is_lost(scenario: Scenario, name: str) -> None:
    figure = SLOT_FIGURES[name]
    for slot in ("0", "1"):
        of_slot = [series for series in scenario.series(name) if series.labels["slot"] == slot]
        counted = sum(_grown(series) for series in of_slot)
        most = scenario.seen(figure, slot, scenario.began, scenario.ended)
        [client] = [client for client in scenario.clients if str(client.slot) == slot]
        least = client.between(figure, scenario.began, scenario.ended)
        # A kill takes what was counted since the last scrape: here at most one interval, a restart likewise.
        assert 0.7 * least <= counted <= most, f"{name} of slot {slot}: clients saw {least:g} to {most:g}"


def _grown(series: Series) -> float:
    """As `increase()` has it, without extrapolation: a fall is a new beginning at 0."""
    values = [value for _, value in series.points]
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def _require_no_spike(scenario: Scenario, name: str, most_between: Most) -> None:
    """Every value of `rate()` over the whole time against what clients saw in its window.

    `rate()` stretches the increase between the first and the last sample of its window to the window's borders, on
    each side by at most 1.1 of the mean gap between samples; of n samples, n - 1 gaps, it is 1 + 2.2 / (n - 1) times
    what was counted at most. The growth between those two samples is what clients saw meanwhile, give or take the lag.
    """
    selector = f'{{__name__="{name}",model="toy"}}'
    window = f"[{round(1000 * WINDOW_SECONDS)}ms]"
    times = (scenario.began + WINDOW_SECONDS, scenario.ended, INTERVAL_SECONDS)
    rates = scenario.prometheus.query_range(f"rate({selector}{window})", *times)
    counts = scenario.prometheus.query_range(f"count_over_time({selector}{window})", *times)
    samples = {_key(series): dict(series.points) for series in counts}
    highest = 0.0
    for series in rates:
        for at, rate in series.points:
            start, end = at - WINDOW_SECONDS - LAG_SECONDS, at + LAG_SECONDS
            most = most_between(series.labels.get("slot"), start, end) * (1 + 2.2 / (samples[_key(series)][at] - 1))
            assert 0 <= rate * WINDOW_SECONDS <= most, f"{name}{series.labels} at {at}: {rate}/s, at most {most} seen"
            highest = max(highest, rate)
    assert highest > 0, f"{name} never grew: nothing has been tested"


def _key(series: Series) -> frozenset[tuple[str, str]]:
    return frozenset(series.labels.items())
