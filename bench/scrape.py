"""What a scrape costs: decoding with nobody, somebody and everybody reading /metrics."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.model import PROMPTS, chat, smollm2
from bench.report import compare
from tests.support import running_server

_TOKENS = 200
# Scrapes a second.
_RATES = {"no scrape": 0.0, "one a second": 1.0, "twenty a second": 20.0}


def run(server: Path, rounds: int) -> None:
    """Print tokens per second at each scrape rate."""
    figures: dict[str, list[float]] = defaultdict(list)
    flags = ("--threads", "2", "--parallel", "2", "--ctx-size", "4096")
    with (
        TemporaryDirectory() as folder,
        running_server(server, smollm2(), *flags, log=Path(folder) / "server.log") as one,
    ):
        prompt = chat(PROMPTS["says something new"])
        one.client.completion(prompt, _TOKENS)
        for _ in range(rounds):
            for name, rate in _RATES.items():
                with _scraping(str(one.client.http.base_url), rate):
                    done = one.client.completion(prompt, _TOKENS, ignore_eos=True)
                figures[name].append(done.timings["predicted_per_second"])
    compare(f"decoding while /metrics is read, SmolLM2-135M, {_TOKENS} tokens, {rounds} rounds", "tok/s", figures)


@contextmanager
def _scraping(url: str, rate: float) -> Iterator[None]:
    """Read /metrics `rate` times a second from a thread."""
    done = threading.Event()

    def loop() -> None:
        with httpx.Client(base_url=url) as client:
            while not done.wait(1 / rate):
                client.get("/metrics").raise_for_status()

    thread = threading.Thread(target=loop)
    if rate:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if rate:
            thread.join()
