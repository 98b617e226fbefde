"""A swap of real servers, as the metrics tell it."""

import time

import pytest

from tests.support import eventually
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration


def of_swaps(house: Orchestrator, name: str, part: str) -> float:
    return house.metric(f"slipstream_{name}_{part}", model="other") or 0.0


def test_a_swap_by_command_is_timed_and_told(house: Orchestrator) -> None:
    house.command("other", "stop").raise_for_status()
    house.start_model("toy")
    assert house.metric("slipstream_server_info", model="toy", host="local", spec_type="draft-mtp") == 1
    swaps, seconds = of_swaps(house, "swap_seconds", "count"), of_swaps(house, "swap_seconds", "sum")
    waits = of_swaps(house, "swap_wait_seconds", "count")
    began, began_unix = time.monotonic(), time.time()
    house.http.post("/api/swap", json={"start": "other", "stop": ["toy"]}).raise_for_status()
    took = time.monotonic() - began
    assert of_swaps(house, "swap_seconds", "count") == swaps + 1
    assert house.view("other")["start_seconds"] <= of_swaps(house, "swap_seconds", "sum") - seconds < took
    assert of_swaps(house, "swap_wait_seconds", "count") == waits, "no request has waited"
    assert house.chat("other").status_code == 200
    assert of_swaps(house, "swap_wait_seconds", "count") == waits + 1
    assert (house.metric("slipstream_event_timestamp_seconds", model="other", event="loaded") or 0) > began_unix

    def ended() -> bool:
        return (house.metric("slipstream_event_timestamp_seconds", model="toy", event="ended") or 0) > began_unix

    eventually(ended, "the other one's end is told")
    assert house.metric("slipstream_server_info", model="toy") is None
