"""A server's log over server-sent events."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support import eventually
from tests.support.orchestrator import Orchestrator

pytestmark = pytest.mark.integration


def lines_of(response: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def test_tail_without_follow_ends(house: Orchestrator) -> None:
    house.start_model("toy")
    response = house.http.get("/api/servers/toy/logs", params={"follow": "false", "tail": 5})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.count("event: line") == 5
    assert house.http.get("/api/servers/toy/logs", params={"follow": "false", "tail": 0}).text == ""


def test_follow_shows_what_happens_next(house: Orchestrator) -> None:
    house.start_model("toy")
    with httpx.stream("GET", f"{house.base_url}/api/servers/toy/logs", params={"tail": 1}, timeout=30.0) as response:
        lines = lines_of(response)
        next(lines)
        house.chat("toy").raise_for_status()
        assert next(line for line in lines if "stop processing" in line)


def test_follow_goes_on_over_a_restart(house: Orchestrator) -> None:
    house.start_model("toy")
    with httpx.stream("GET", f"{house.base_url}/api/servers/toy/logs", params={"tail": 1}, timeout=30.0) as response:
        lines = lines_of(response)
        next(lines)
        house.command("toy", "restart").raise_for_status()
        assert next(line for line in lines if "listening on" in line)


def test_many_lines_arrive_in_order(house: Orchestrator) -> None:
    house.start_model("toy")
    for i in range(60):
        house.chat("toy", f"question {i}", max_tokens=2).raise_for_status()
    whole = house.server_log("toy").splitlines()
    assert len(whole) > 300
    with httpx.stream("GET", f"{house.base_url}/api/servers/toy/logs", params={"tail": 300}, timeout=30.0) as response:
        lines = lines_of(response)
        followed = [next(lines) for _ in range(300)]
    assert followed == eventually(lambda: house.server_log("toy").splitlines()[-300:], "the log")
