"""A stack of processes with something to show: traffic, a change of flags, a kill, a swap, a download."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.model import smollm2
from orchestrator.servers import find_binary
from orchestrator.settings import Settings
from tests import REPOSITORY
from tests.support import ToyBox, eventually
from tests.support.exporters import node_exporter_program, running_node_exporter
from tests.support.hub import Hub, running_hub
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.prometheus import Prometheus, Target, rules_within, running_prometheus

_INTERVAL_SECONDS = 1.0
_TURN_SECONDS = 20
_SMALL, _TOY, _OTHER, _FAR = "smollm2-135m", "toy-mtp", "toy-plain", "toy-far"
_RULES = REPOSITORY / "docker" / "prometheus" / "rules"
_COLLECTORS = ("cpu", "meminfo", "loadavg", "pressure", "diskstats", "filesystem")


@dataclass
class Stage:
    """Orchestrator and Prometheus that run."""

    house: Orchestrator
    prometheus: Prometheus
    interval_seconds: float = _INTERVAL_SECONDS

    @property
    def prometheus_url(self) -> str:
        return str(self.prometheus.http.base_url)

    def play(self) -> tuple[float, float]:
        """Something of everything that the dashboards show; Unix times of beginning and end."""
        began = time.time()
        self._traffic(_SMALL, _TOY)
        self._pull()
        changed = {"flags": {"spec_draft_n_max": 1}}
        self.house.http.put(f"/api/servers/{_TOY}", json=changed, timeout=60).raise_for_status()
        self._traffic(_SMALL, _TOY)
        self._slipstream("bench-traffic", _TOY, "--compare", "--rounds", "3", "--max-tokens", "60")
        os.kill(self.house.child(_TOY).pid, signal.SIGKILL)
        self._traffic(_SMALL, _TOY)
        self.house.http.post("/api/swap", json={"start": _OTHER, "stop": [_TOY]}, timeout=60).raise_for_status()
        self._traffic(_SMALL, _OTHER, _TOY)
        self.prometheus.scraped("slipstream")
        return began, time.time()

    def _traffic(self, *models: str) -> None:
        limits = ("--seconds", str(_TURN_SECONDS), "--rate", "1.5", "--max-tokens", "80")
        self._slipstream("bench-traffic", *models, *limits)

    def _pull(self) -> None:
        """From a hub on this machine."""
        job = self.house.http.post(f"/api/models/{_FAR}/pull").raise_for_status().json()["id"]
        jobs = self.house.http
        eventually(lambda: jobs.get(f"/api/jobs/{job}").json()["state"] == "succeeded", f"{_FAR} is here", 60.0)

    def _slipstream(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *arguments],
            env=os.environ | {"SLIPSTREAM_URL": self.house.base_url},
            cwd=REPOSITORY,
            check=False,
            timeout=20 * _TURN_SECONDS,
        )


@contextmanager
def running_stage(server: Path | None) -> Iterator[Stage]:
    """Start it; everything ends, and what it wrote is gone, with the block."""
    settings = Settings()
    binary = find_binary(server or settings.llama_server, settings.cache)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        house = Orchestrator(home / "house", binary, {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
        _write_models(house, ToyBox(home), stack.enter_context(running_hub()))
        stack.enter_context(running_orchestrator(house))
        flags = ["--collector.disable-defaults", *(f"--collector.{name}" for name in _COLLECTORS)]
        targets = [Target("slipstream", house.base_url.removeprefix("http://"))]
        if program := node_exporter_program():
            node = stack.enter_context(running_node_exporter(program, flags, home / "node-exporter.log"))
            targets.append(Target("node", node, {"host": "local"}))
        rules = rules_within(600.0, sorted(_RULES.glob("*.yml")), home / "rules")
        prometheus = Prometheus(home / "prometheus", targets, rules, _INTERVAL_SECONDS)
        stack.enter_context(running_prometheus(prometheus))
        prometheus.scraped("slipstream")
        for model in (_SMALL, _TOY):
            house.start_model(model)
        eventually(lambda: prometheus.query("slipstream_slot_busy"), "slots are scraped", 30.0)
        yield Stage(house, prometheus)


def _write_models(house: Orchestrator, toys: ToyBox, hub: Hub) -> None:
    threads: dict[str, Any] = {"threads": 1}
    house.write_model(_SMALL, smollm2(), speculation={"type": "ngram-simple"}, server=threads | {"parallel": 2})
    drafting = {"type": "draft-mtp", "n_max": 3, "relaxed_top_n": 2}
    toy = {**threads, "spec_draft_threads": 1, "ctx_size": 8192, "parallel": 2}
    house.write_model(_TOY, toys.mtp(noise=0.25, miss_rank=2, trunk=0.2).path, speculation=drafting, server=toy)
    house.write_model(_OTHER, toys.pair().path, server=threads | {"ctx_size": 8192, "parallel": 2})
    house.write_model(_FAR, source={"url": hub.serve("far.gguf", toys.mtp(seed=3).path)}, server=threads)
