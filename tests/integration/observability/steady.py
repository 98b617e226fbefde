"""Traffic that never stops, whatever happens to servers and orchestrator, and what its clients saw and when."""

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.support import eventually
from tests.support.orchestrator import Orchestrator

_RETRY_SECONDS = 0.05
_TIMEOUT_SECONDS = 30.0


@dataclass
class Steady:
    """A client that asks for one slot of a model, answer after answer, until it is told to stop.

    `seen` are (Unix time, figures so far of all answers): each chunk tells what has been counted for its answer up to
    it. `ends` are the times at which an attempt ended, and whether its answer was whole.
    """

    house: Orchestrator
    model: str
    slot: int
    tokens: int = 120
    seen: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    ends: list[tuple[float, bool]] = field(default_factory=list)
    whole: int = 0

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop`."""
        while not stop.is_set():
            try:
                self._answer()
            except (httpx.HTTPError, ValueError):
                # Killed, drained or not there yet: that is what this traffic is for.
                self.ends.append((time.time(), False))
                stop.wait(_RETRY_SECONDS)
            else:
                self.ends.append((time.time(), True))
                self.whole += 1

    def _answer(self) -> None:
        body = {
            **{"model": self.model, "id_slot": self.slot, "max_tokens": self.tokens, "ignore_eos": True},
            **{"messages": [{"role": "user", "content": "go on"}], "stream": True, "timings_per_token": True},
        }
        before = self.seen[-1][1] if self.seen else {}
        with (
            httpx.Client(base_url=self.house.base_url, timeout=_TIMEOUT_SECONDS, trust_env=False) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            response.raise_for_status()
            line = ""
            for line in filter(None, response.iter_lines()):
                if line.startswith("data: {") and (timings := json.loads(line[6:]).get("timings")):
                    figures = _figures(timings)
                    self.seen.append((time.time(), {k: v + before.get(k, 0.0) for k, v in figures.items()}))
            if line != "data: [DONE]":
                raise ValueError(f"the answer broke off: {line}")

    def between(self, figure: str, start: float, end: float) -> float:
        """How much of a figure its client saw between two Unix times."""
        return self._until(figure, end) - self._until(figure, start)

    def _until(self, figure: str, at: float) -> float:
        told = bisect_right(self.seen, at, key=lambda seen: seen[0])
        return self.seen[told - 1][1][figure] if told else 0.0

    def ended(self, start: float, end: float) -> int:
        """Attempts that ended between two Unix times, however they did."""
        return sum(start < at <= end for at, _ in self.ends)

    def broken(self, start: float, end: float) -> int:
        """Those of them that broke off."""
        return sum(start < at <= end and not is_whole for at, is_whole in self.ends)


def _figures(timings: dict[str, float]) -> dict[str, float]:
    return {
        "predicted_tokens": timings.get("predicted_n", 0),
        "predicted_seconds": timings.get("predicted_ms", 0.0) / 1000,
        "draft_tokens": timings.get("draft_n", 0),
        "accepted_tokens": timings.get("draft_n_accepted", 0),
        "verification_steps": timings.get("draft_n_steps", 0),
    }


@contextmanager
def steady_traffic(*clients: Steady) -> Iterator[None]:
    """All of them at once, for the length of a `with` block."""
    stop = threading.Event()
    threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(_TIMEOUT_SECONDS)


def answers_go_on(*clients: Steady, deadline_seconds: float = 30.0) -> None:
    """Wait until each client has had two more whole answers."""
    wanted = {id(client): client.whole + 2 for client in clients}
    eventually(lambda: all(client.whole >= wanted[id(client)] for client in clients), "answers go on", deadline_seconds)
