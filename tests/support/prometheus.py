"""A real Prometheus of a test's own: its data, its port, its scrape interval, and our rules."""

import json
import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.support.polling import eventually

Json = dict[str, Any]

START_DEADLINE_SECONDS = 20.0
STOP_DEADLINE_SECONDS = 10.0
ANSWER_TIMEOUT_SECONDS = 30.0
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
_READY = "Server is ready to receive web requests."


@dataclass(frozen=True)
class Sample:
    """One element of an instant vector; `labels` are without the name."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Series:
    """One element of a range vector or of a range query: points are (Unix time, value)."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Target:
    """What is scraped at `/metrics`: `host:port`, and labels that its series get beside job and instance."""

    job: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Prometheus:
    """`prometheus` on a free port; everything it writes lies under `home`.

    A rule file is read where it is: see `rules_within` for one
    that does not wait. Evaluation is as often as scraping.
    """

    home: Path
    targets: Sequence[Target]
    rules: Sequence[Path] = ()
    interval_seconds: float = 0.2
    process: subprocess.Popen[bytes] | None = None
    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False))

    def start(self) -> None:
        """Start and wait until it takes requests."""
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.home / "prometheus.yml"
        config.write_text(json.dumps(self._configuration()))
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={self.home / 'data'}"]
        arguments += ["--web.listen-address=127.0.0.1:0", "--storage.tsdb.retention.time=1d"]
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [prometheus_program(), *arguments], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        url = eventually(self._address, "Prometheus is ready", START_DEADLINE_SECONDS)
        self.http = httpx.Client(base_url=url, timeout=ANSWER_TIMEOUT_SECONDS, trust_env=False)

    def _configuration(self) -> Json:
        interval = f"{round(1000 * self.interval_seconds)}ms"
        every = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
        jobs = [
            {"job_name": target.job, "static_configs": [{"targets": [target.address], "labels": dict(target.labels)}]}
            for target in self.targets
        ]
        return {"global": every, "rule_files": [str(path) for path in self.rules], "scrape_configs": jobs}

    @property
    def _log(self) -> Path:
        return self.home / "prometheus.log"

    def _address(self) -> str | None:
        log = self._log.read_text(errors="replace")
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"Prometheus ended by itself; its log:\n{log[-4000:]}")
        found = _LISTENING.search(log)
        return f"http://{found[1]}" if found and _READY in log else None

    def close(self) -> None:
        """End it."""
        self.http.close()
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_DEADLINE_SECONDS)

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """An instant vector, of Unix time `at` or of now; a scalar is a sample without labels."""
        data = self._ask("query", query=expression, **({} if at is None else {"time": repr(at)}))
        if data["resultType"] == "scalar":
            return [Sample("", {}, float(data["result"][1]))]
        assert data["resultType"] == "vector", f"{expression} gives a {data['resultType']}, expected a vector"
        return [Sample(*_split(found["metric"]), float(found["value"][1])) for found in data["result"]]

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The one value of an expression; None where it has none."""
        found = self.query(expression, at)
        assert len(found) <= 1, f"{expression} has {len(found)} values, expected one: {found}"
        return found[0].value if found else None

    def query_range(self, expression: str, start: float, end: float, step_seconds: float) -> list[Series]:
        """A matrix: what a panel draws."""
        times = {"start": repr(start), "end": repr(end), "step": repr(step_seconds)}
        return _series(self._ask("query_range", query=expression, **times))

    def raw(self, selector: str, at: float, seconds: float) -> list[Series]:
        """Samples as they were scraped, of the time before `at`."""
        return _series(self._ask("query", query=f"{selector}[{math.ceil(seconds * 1000)}ms]", time=repr(at)))

    def alerts(self) -> list[Json]:
        """Alerts that are pending or fire now."""
        return list(self._ask("alerts")["alerts"])

    def rule_groups(self) -> list[Json]:
        """Every rule as it was evaluated last, by group."""
        return list(self._ask("rules")["groups"])

    def _ask(self, path: str, **parameters: str) -> Any:
        # A long expression does not fit into an address.
        method = "POST" if "query" in parameters else "GET"
        answer = self.http.request(method, f"/api/v1/{path}", data=parameters or None)
        assert answer.status_code == httpx.codes.OK, f"{path} {parameters}: {answer.status_code} {answer.text}"
        return answer.json()["data"]

    def scraped(self, job: str) -> float:
        """Wait for a scrape of `job` that began after this call and for a later one; the Unix time of the first.

        At that time every query sees that scrape, and none of them has anything to extrapolate behind it.
        """
        after = time.time()
        found: list[float] = []

        def is_scraped() -> bool:
            # Of a selector alone; of any other expression timestamp() is the time of the query.
            rows = self.query(f'timestamp(up{{job="{job}"}}) and up{{job="{job}"}} == 1')
            if rows and rows[0].value > max([after, *found]):
                found.append(rows[0].value)
            return len(found) == 2

        eventually(is_scraped, f"Prometheus scrapes {job} twice", START_DEADLINE_SECONDS)
        return found[0]


def prometheus_program() -> str:
    """The program; skips the test where it is missing."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("NOT TESTED: there is no `prometheus`. It is in the Debian package of that name.")
    return found


@contextmanager
def running_prometheus(prometheus: Prometheus) -> Iterator[Prometheus]:
    """Start it, yield it, end it."""
    try:
        prometheus.start()
        yield prometheus
    finally:
        prometheus.close()


def rules_within(hold_seconds: float, files: Sequence[Path], into: Path) -> list[Path]:
    """Copies of rule files in which no alert waits longer than this before it fires, and no group its own interval."""
    into.mkdir(parents=True, exist_ok=True)
    copies = []
    for file in files:
        document = YAML(typ="safe").load(file)
        for group in document["groups"]:
            group.pop("interval", None)
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = f"{round(1000 * hold_seconds)}ms"
                rule.pop("keep_firing_for", None)
        copies.append(into / file.name)
        copies[-1].write_text(json.dumps(document))
    return copies


def _split(metric: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    return metric.get("__name__", ""), {name: value for name, value in metric.items() if name != "__name__"}


def _series(data: Json) -> list[Series]:
    assert data["resultType"] == "matrix", f"a {data['resultType']}, expected a matrix"
    return [
        Series(*_split(found["metric"]), tuple((at, float(value)) for at, value in found["values"]))
        for found in data["result"]
    ]
