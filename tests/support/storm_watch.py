"""Watchers of a storm: what must hold at every moment is looked at from outside while it blows."""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.orchestrator import Orchestrator, argv_of, is_gone

Json = dict[str, Any]

PAUSE_SECONDS = 0.1
# How long what is seen of processes and what is told of them may differ: a process is there before its start is told.
GRACE_SECONDS = 2.0
# What a server turns out to hold once it has loaded may be a little more than the largest load of its kind before; no
# server is as small as this.
NOISE_BYTES = 4 << 20
MOST_KEPT = 20
STEPS = {
    None: {"loading"},
    "loading": {"warming", "stopping"},
    "warming": {"ready", "stopping"},
    "ready": {"draining", "stopping"},
    "draining": {"stopping"},
    "stopping": {"gone"},
}


@dataclass
class Watch:
    """Looks at `/api/servers` and at `/proc` in a thread of its own."""

    orchestrator: Orchestrator
    budget_bytes: int
    looks: int = 0
    checks: int = 0
    most_held_bytes: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._odd_since: dict[str, float] = {}
        self._ready_twice: dict[str, set[int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        url = self.orchestrator.base_url
        with httpx.Client(base_url=url, timeout=30.0, trust_env=False) as client:
            while not self._stopping.wait(PAUSE_SECONDS):
                try:
                    self._look(client)
                except (httpx.HTTPError, KeyError, ValueError) as e:
                    self._note(f"/api/servers: {e!r}")

    def _look(self, client: httpx.Client) -> None:
        before = set(self.orchestrator.leftovers())
        servers = client.get("/api/servers").raise_for_status().json()["servers"]
        there = {pid for pid in self.orchestrator.leftovers() if pid in before and not is_gone(pid)}
        self.looks += 1
        self._check_memory(servers)
        for server in servers:
            self._check_instances(server["model"], server["instances"])
        told = {i["pid"] for s in servers for i in s["instances"] if i["pid"] is not None}
        odd = {f"process {pid} is no instance's: {' '.join(argv_of(pid))[-200:]}" for pid in there - told}
        odd |= {f"an instance names process {pid}, which is not there" for pid in told if is_gone(pid)}
        self._check_lasting(odd)

    def _check_memory(self, servers: list[Json]) -> None:
        held = sum(i["needs_bytes"].get("host", 0) for s in servers for i in s["instances"])
        self.most_held_bytes = max(self.most_held_bytes, held)
        self._hold(held <= self.budget_bytes + NOISE_BYTES, f"{held} bytes are set aside, of {self.budget_bytes}")

    def _check_instances(self, model: str, instances: list[Json]) -> None:
        coming = [i["id"] for i in instances if i["state"] in ("loading", "warming")]
        ready = {i["id"] for i in instances if i["state"] == "ready"}
        self._hold(len(coming) <= 1, f"{model}: {coming} load at a time")
        self._hold(len(coming) + len(ready) <= 2, f"{model}: {coming} come and {ready} serve")
        # The old one of a change is seen beside the new one for a moment at most.
        twice = ready if len(ready) > 1 else set()
        self._hold(not twice or twice != self._ready_twice.get(model), f"{model}: {ready} go on side by side")
        self._ready_twice[model] = twice

    def _check_lasting(self, odd: set[str]) -> None:
        now = time.monotonic()
        self._odd_since = {what: self._odd_since.get(what, now) for what in odd}
        self.checks += 1
        for what, since in self._odd_since.items():
            if now - since > GRACE_SECONDS:
                self._note(f"{what} (for {now - since:.1f} s)")

    def _hold(self, holds: bool, what: str) -> None:
        self.checks += 1
        if not holds:
            self._note(what)

    def _note(self, what: str) -> None:
        if len(self.wrong) < MOST_KEPT:
            self.wrong.append(what)


@dataclass
class Following:
    """Follows `/api/events` from its beginning in a thread of its own, and holds each transition to the rules."""

    base_url: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    alive: dict[int, tuple[str, str]] = field(default_factory=dict)
    last: int = 0

    def __post_init__(self) -> None:
        self._client = httpx.Client(base_url=self.base_url, timeout=None, trust_env=False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)
        self._thread.start()

    def join(self, deadline_seconds: float = 10.0) -> None:
        """The stream ends with the orchestrator."""
        self._thread.join(deadline_seconds)
        if self._thread.is_alive():
            self.wrong.append(f"/api/events has not ended {deadline_seconds:g} s after the orchestrator")
        self._client.close()

    def _run(self) -> None:
        try:
            with self._client.stream("GET", "/api/events") as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self._take(json.loads(line[6:]))
        except httpx.HTTPError as e:
            self.wrong.append(f"/api/events: {e!r}")

    def _take(self, event: Json) -> None:
        if event["number"] != self.last + 1:
            self.wrong.append(f"event {event['number']} came after {self.last}")
        self.last = event["number"]
        instance, model, state = event["instance"], event["model"], event["state"]
        self.counts[state] += 1
        if instance is None:
            return
        _, before = self.alive.get(instance, (model, None))
        if state not in STEPS[before]:
            self.wrong.append(f"{model} {instance}: {before} became {state} ({event['why']})")
        if not event["why"]:
            self.wrong.append(f"{model} {instance}: {state} without a reason")
        self.alive[instance] = (model, state)
        if state == "gone":
            del self.alive[instance]
