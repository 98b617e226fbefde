"""Clients of the lifecycle tests: one that asks without pause, and what an orchestrator tells of its servers."""

import json
import threading
from typing import Any

import httpx

from tests.support.orchestrator import Orchestrator

Json = dict[str, Any]


class Steady:
    """Asks one model again and again in a thread of its own, a stream and a plain call by turns, until left."""

    def __init__(self, orchestrator: Orchestrator, model: str) -> None:
        self.answers: list[str] = []
        self.errors: list[str] = []
        self._base_url = orchestrator.base_url
        self._model = model
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"steady {model}")

    def __enter__(self) -> "Steady":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Whole answers so far."""
        return len(self.answers)

    def _run(self) -> None:
        with httpx.Client(base_url=self._base_url, timeout=60.0, trust_env=False) as client:
            streams = False
            while not self._stopping.is_set():
                streams = not streams
                try:
                    self._ask(client, streams)
                except httpx.HTTPError as e:
                    self.errors.append(repr(e))

    def _ask(self, client: httpx.Client, streams: bool) -> None:
        body = {"model": self._model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        response = client.post("/v1/chat/completions", json=body | {"stream": streams, "temperature": 0})
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        if response.status_code != 200 or (streams and events[-1:] != ["[DONE]"]):
            self.errors.append(f"{response.status_code} {response.text[-500:]}")
        else:
            self.answers.append(response.text)


def transitions(orchestrator: Orchestrator, model: str) -> list[tuple[str, str]]:
    """States and reasons that the servers of a model have come into, from the beginning."""
    response = orchestrator.http.get("/api/events", params={"follow": "false"}).raise_for_status()
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    return [(event["state"], event["why"]) for event in events if event["model"] == model]


def states(orchestrator: Orchestrator, model: str) -> list[str]:
    """The same, states alone."""
    return [state for state, _ in transitions(orchestrator, model)]


def error_of(response: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal by `/v1`, whose message is not empty; 429 and 503 say when to come back."""
    error = response.json()["error"]
    assert error["message"]
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"]) >= 1, response.headers
    return response.status_code, error["code"]
