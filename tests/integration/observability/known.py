"""Known traffic on real servers, scraped by a real Prometheus: what each answer said, by model and slot."""

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.integration.observability.asking import Answer, Json, ask
from tests.integration.orchestrator.streams import Background
from tests.support import Samples, ToyBox, eventually
from tests.support.hub import Hub, running_hub
from tests.support.orchestrator import ChildServer, Orchestrator, running_orchestrator
from tests.support.prometheus import Prometheus, Target, running_prometheus

JOB = "slipstream"
INTERVAL_SECONDS = 0.1
# Fixed windows reach back before the first sample, and a rule is evaluated up to one interval after the last: over
# so many intervals the interval more does not reach a hundredth.
LEAST_INTERVALS = 150
N_MAX = 3
THREADS: dict[str, Any] = {"threads": 1, "spec_draft_threads": 1}
JOB_SECONDS = 60.0
# More than any scrape sends.
UNREAD_BYTES = 2000


@dataclass(frozen=True)
class Kind:
    """A model of the known traffic: its speculation, its slots; without slots it is never loaded."""

    spec_type: str
    slots: int


KINDS = {"strict": Kind("draft-mtp", 2), "relaxed": Kind("draft-mtp", 2), "plain": Kind("none", 1)}
# Downloaded, and never loaded.
FETCHED = "fetched"
CATALOGUE = (*KINDS, FETCHED)
Request = tuple[str, int, int, Json]
# Model, slot, tokens, fields: no two slots have the same of anything, or one could stand for the other.
FIRST: tuple[Request, ...] = (
    ("strict", 0, 150, {}),
    ("strict", 1, 61, {"speculative.n_max": 1}),
    ("strict", 1, 29, {"speculative.n_max": 0}),
    ("relaxed", 0, 120, {}),
    ("relaxed", 1, 90, {"speculative.n_max": 2}),
    ("relaxed", 1, 35, {"speculative.relaxed_top_n": 0}),
    ("plain", 0, 77, {}),
)
# After a change of the flags of `strict` and a kill of `plain`.
LAST: tuple[Request, ...] = (
    ("strict", 0, 83, {"speculative.n_max": 2}),
    ("strict", 1, 47, {}),
    ("plain", 0, 31, {}),
)
BENCH: Json = {
    "plain": {"answers": 1, "predicted_tokens": 101, "predicted_seconds": 1.0},
    "drafted": {
        **{"answers": 1, "predicted_tokens": 101, "predicted_seconds": 0.48},
        **{"draft_tokens": 75, "accepted_tokens": 60, "verification_steps": 40},
    },
}


@dataclass
class Known:
    """The traffic, and the times between which Prometheus has seen all of it; counters are at rest outside.

    `before` and `after` are the metrics page at those times. `requests` counts what clients got, by model and outcome.
    """

    house: Orchestrator
    prometheus: Prometheus
    began: float
    before: Samples
    after: Samples
    answers: list[Answer] = field(default_factory=list)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    fetched_bytes: int = 0
    kept_at: float = math.nan
    at: float = math.nan

    @cached_property
    def window_seconds(self) -> int:
        """A window that begins before all traffic, whole seconds."""
        return math.ceil(self.at - self.began) + 1

    @cached_property
    def events(self) -> list[Json]:
        """Transitions of all servers since the orchestrator started."""
        text = self.house.http.get("/api/events", params={"follow": False}).raise_for_status().text
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]

    def loads(self, model: str) -> list[float]:
        """Seconds from loading to ready of each load in the window."""
        began = {e["instance"]: e["at"] for e in self.events if e["model"] == model and e["state"] == "loading"}
        ready = [e for e in self.events if e["model"] == model and e["state"] == "ready"]
        return [e["at"] - began[e["instance"]] for e in ready if began[e["instance"]] > self.began]

    def grown(self, name: str, **labels: str) -> float:
        """How much the page's samples with these labels grew, summed."""
        return _sum(self.after, name, labels) - _sum(self.before, name, labels)


@contextmanager
def known_traffic(binary: Path, toys: ToyBox, home: Path, rules: list[Path], targets: list[Target]) -> Iterator[Known]:
    """Servers, Prometheus and traffic, all of it scraped; `targets` are those beside ours."""
    house = Orchestrator(home / "house", binary, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    with running_hub() as hub, running_orchestrator(house):
        _write_models(house, toys, hub)
        for model in KINDS:
            house.start_model(model)
        ours = Target(JOB, house.base_url.removeprefix("http://"))
        prometheus = Prometheus(home / "prometheus", [ours, *targets], rules, INTERVAL_SECONDS)
        with running_prometheus(prometheus):
            page = _page(house)
            known = Known(house, prometheus, prometheus.scraped(JOB), page, page)
            _drive(known)
            enough = known.began + LEAST_INTERVALS * INTERVAL_SECONDS
            eventually(lambda: time.time() > enough, "there are samples enough", 60.0)
            known.after = _page(house)
            known.at = prometheus.scraped(JOB)
            yield known


def _write_models(house: Orchestrator, toys: ToyBox, hub: Hub) -> None:
    server = THREADS | {"ctx_size": 4096}
    strict: Json = {"type": "draft-mtp", "n_max": N_MAX}
    house.write_model("strict", toys.mtp(noise=0.2).path, speculation=strict, server=server | {"parallel": 2})
    # Its drafter drafts the target's second choice: relaxed accepts what strict refuses.
    relaxed = strict | {"relaxed_top_n": 2}
    second = toys.mtp(draft_rank=2, noise=0.3).path
    house.write_model("relaxed", second, speculation=relaxed, server=server | {"parallel": 2})
    pair = toys.pair().path
    house.write_model("plain", pair, server=server | {"parallel": 1})
    house.write_model(FETCHED, source={"url": hub.serve("fetched.gguf", pair)}, server=server)


def _drive(known: Known) -> None:
    house = known.house
    _ask_all(known, FIRST, "previous")
    assert house.chat("strict", **{"speculative.n_max": "many"}).status_code == 400
    known.requests["strict", "client_error"] += 1
    launch = house.http.get("/api/models/relaxed/bench").raise_for_status().json()["launch"]
    kept = house.http.put("/api/models/relaxed/bench", json={"launch": launch, "rounds": [BENCH]})
    known.kept_at = kept.raise_for_status().json()["result"]["at"]
    known.fetched_bytes = _pull(house)
    house.http.put("/api/servers/strict", json={"flags": {"ctx_size": 8192}}, timeout=60).raise_for_status()
    _kill_in_an_answer(known, "plain")
    _ask_all(known, LAST, "current")


def _ask_all(known: Known, requests: tuple[Request, ...], flags: str) -> None:
    changed = ("strict",)
    for model, slot, tokens, fields in requests:
        known.answers.append(ask(known.house, model, slot, tokens, flags if model in changed else "current", fields))
        known.requests[model, "ok"] += 1


def _pull(house: Orchestrator) -> int:
    """Bring the model that is not here; its size, bytes."""
    job = house.http.post(f"/api/models/{FETCHED}/pull").raise_for_status().json()["id"]

    def ended() -> Json | None:
        found: Json = house.http.get(f"/api/jobs/{job}").raise_for_status().json()
        assert found["state"] not in ("failed", "cancelled"), found
        return found if found["state"] == "succeeded" else None

    [file] = eventually(ended, "it is pulled", JOB_SECONDS)["result"]["files"]
    return int(file["size_bytes"])


def _kill_in_an_answer(known: Known, model: str) -> None:
    """A server that dies with a request in it, before it has generated anything: an error of ours."""
    house = known.house
    child = house.child(model)
    os.kill(child.pid, signal.SIGSTOP)
    victim = Background(lambda: house.chat(model, "x" * UNREAD_BYTES))
    # Before that the gateway would see that it cannot connect, and ask the next server.
    eventually(lambda: _unread_bytes(child) > UNREAD_BYTES, "the request is on the server")
    os.kill(child.pid, signal.SIGKILL)
    assert victim.wait().status_code >= 500
    known.requests[model, "server_error"] += 1
    eventually(lambda: house.view(model)["state"] == "ready" and house.view(model)["pid"] != child.pid, "it is back")


def _unread_bytes(server: ChildServer) -> int:
    """The most that waits in a connection to it."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return max((int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port)), default=0)


def _page(house: Orchestrator) -> Samples:
    return Samples.parse(house.http.get("/metrics").raise_for_status().text)


def _sum(samples: Samples, name: str, labels: dict[str, str]) -> float:
    return sum(
        v for (series, its), v in samples.values.items() if series == name and labels.items() <= dict(its).items()
    )
