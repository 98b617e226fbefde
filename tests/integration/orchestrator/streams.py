"""Streamed answers, read event by event, and requests that wait in the background."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.orchestrator import Orchestrator

MESSAGES: Any = [{"role": "user", "content": "hello"}]
ENDLESS: dict[str, Any] = {"model": "endless", "max_tokens": 10_000_000, "ignore_eos": True}


@dataclass
class Stream:
    """An open answer of `/v1/chat/completions`."""

    response: httpx.Response
    lines: Iterator[str]

    def events(self) -> Iterator[str]:
        """Data of each event, `[DONE]` included; ends with the answer."""
        return (line.removeprefix("data: ") for line in self.lines if line.startswith("data: "))

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Parsed events without `[DONE]`."""
        return (json.loads(data) for data in self.events() if data != "[DONE]")

    def begin(self) -> None:
        """Wait for the first event that carries text."""
        next(chunk for chunk in self.chunks() if chunk["choices"] and chunk["choices"][0]["delta"].get("content"))


@contextmanager
def open_stream(house: Orchestrator, **fields: Any) -> Iterator[Stream]:
    """Ask for a streamed answer; leaving the block closes the connection."""
    body = {"messages": MESSAGES, "stream": True, **fields}
    with (
        httpx.Client(base_url=house.base_url, timeout=60.0, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        yield Stream(response, response.iter_lines())


class Background:
    """A request in a thread of its own; `wait` gives its answer, or raises what it raised."""

    def __init__(self, ask: Callable[[], httpx.Response]) -> None:
        self._outcome: list[httpx.Response | Exception] = []
        self._thread = threading.Thread(target=self._run, args=(ask,))
        self._thread.start()

    def _run(self, ask: Callable[[], httpx.Response]) -> None:
        try:
            self._outcome.append(ask())
        except Exception as e:
            self._outcome.append(e)

    def wait(self, deadline_seconds: float = 30.0) -> httpx.Response:
        self._thread.join(deadline_seconds)
        assert self._outcome, f"no answer within {deadline_seconds:g} s"
        if isinstance(self._outcome[0], Exception):
            raise self._outcome[0]
        return self._outcome[0]
