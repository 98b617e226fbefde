"""What a scrape costs: how long it takes, what it takes of the event loop, and of decoding."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.model import PROMPTS, smollm2
from bench.report import compare, spread, table
from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator

_MODELS, _SLOTS = 8, 16
_SCRAPES = 50
_MEANWHILE = 1000
_TOKENS = 300
_COMPARED = "/healthz, for comparison"
# As Prometheus asks.
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
# Scrapes a second.
_RATES = {"no scrape": 0.0, "one a second": 1.0, "no scrape again": 0.0, "twenty a second": 20.0}


def run(server: Path, rounds: int) -> None:
    """Print what scrapes of many slots take, and tokens per second at each scrape rate."""
    _time(server, rounds)
    _decoding(server, rounds)


def _time(server: Path, rounds: int) -> None:
    figures: dict[str, list[float]] = defaultdict(list)
    flags: dict[str, str | int | bool] = {"parallel": _SLOTS, "ctx_size": 256 * _SLOTS, "threads": 1}
    with TemporaryDirectory() as folder:
        toy = ToyBox(Path(folder)).mtp()
        ours = Orchestrator(Path(folder) / "home", server)
        names = [f"toy-{number}" for number in range(_MODELS)]
        for name in names:
            draft = {"type": "draft-mtp", "n_max": 3}
            ours.write_model(name, toy.path, server=flags | {"spec_draft_threads": 1}, speculation=draft)
        with running_orchestrator(ours):
            for name in names:
                ours.start_model(name)
                ours.chat(name, max_tokens=40).raise_for_status()
            page = _scrape(ours.http)
            for _ in range(rounds):
                _one_round(ours, figures)
    samples = sum(not line.startswith("#") for line in page.splitlines())
    what = f"a scrape of {_MODELS} models with {_SLOTS} slots each, {samples} samples, {len(page) >> 10} KiB"
    rows = [[name, spread(values, 2)] for name, values in figures.items()]
    table(f"{what}, {rounds} rounds of {_SCRAPES}", ["what", "ms"], rows)


def _one_round(ours: Orchestrator, figures: dict[str, list[float]]) -> None:
    """Medians of one round. The event loop runs in the process' first thread."""
    calls: dict[str, Callable[[], object]] = {
        "/metrics": lambda: _scrape(ours.http),
        "/api/speculation": lambda: ours.http.get("/api/speculation").raise_for_status(),
        _COMPARED: lambda: ours.http.get("/healthz").raise_for_status(),
    }
    for name, call in calls.items():
        before = _cpu_seconds(ours.pid)
        seconds = _timed(call)
        loop, others = (1000 * (b - a) / _SCRAPES for a, b in zip(before, _cpu_seconds(ours.pid), strict=True))
        figures[f"{name}: until it is answered"].append(1000 * seconds[_SCRAPES // 2])
        figures[f"{name}: of the event loop's thread"].append(loop)
        figures[f"{name}: of other threads"].append(others)
    with _scraping(ours.base_url, 20.0):
        seconds = _timed(calls[_COMPARED], _MEANWHILE)
    figures["/healthz while /metrics is read 20 times a second: until it is answered"].append(
        1000 * seconds[_MEANWHILE // 2]
    )
    figures[f"the same, the slowest of {_MEANWHILE}"].append(1000 * seconds[-1])


def _timed(call: Callable[[], object], times: int = _SCRAPES) -> list[float]:
    """Seconds of each call, the shortest first."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def _scrape(client: httpx.Client) -> str:
    return client.get("/metrics", headers={"accept": _ACCEPT}).raise_for_status().text


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of the first thread, and of all others together."""
    spent = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent.pop(pid), sum(spent.values())


def _decoding(server: Path, rounds: int) -> None:
    figures: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, running_orchestrator(Orchestrator(Path(folder), server)) as ours:
        ours.write_model("smollm2", smollm2(), server={"threads": 2, "parallel": 2, "ctx_size": 4096})
        ours.start_model("smollm2")
        ask = {"max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
        for turn in range(rounds + 1):
            for name, rate in _RATES.items():
                with _scraping(ours.base_url, rate):
                    answer = ours.chat("smollm2", PROMPTS["says something new"], **ask).raise_for_status()
                if turn:
                    figures[name].append(answer.json()["timings"]["predicted_per_second"])
    compare(f"decoding while /metrics is scraped, SmolLM2-135M, {_TOKENS} tokens, {rounds} rounds", "tok/s", figures)


@contextmanager
def _scraping(url: str, rate: float) -> Iterator[None]:
    """Scrape `rate` times a second from a thread."""
    done = threading.Event()

    def loop() -> None:
        with httpx.Client(base_url=url) as client:
            while not done.wait(1 / rate):
                _scrape(client)

    thread = threading.Thread(target=loop)
    if rate:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if rate:
            thread.join()
