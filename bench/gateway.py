"""What the gateway adds: time to first token and tokens per second, against the same server asked directly."""

import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.model import PROMPTS, smollm2
from bench.report import compare
from tests.support.orchestrator import Orchestrator, running_orchestrator

_TOKENS = 100
_TIMEOUT_SECONDS = 120.0


def run(server: Path, rounds: int) -> None:
    """Print both figures for both ways, in turns, over one llama-server."""
    first: dict[str, list[float]] = defaultdict(list)
    speed: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, running_orchestrator(Orchestrator(Path(folder), server)) as ours:
        ours.write_model("smollm2", smollm2(), server={"ctx_size": 4096, "parallel": 1})
        child = ours.start_model("smollm2")
        key = {"authorization": f"Bearer {child.api_key}"}
        ways = {
            "llama-server itself": httpx.Client(base_url=child.url, headers=key, timeout=_TIMEOUT_SECONDS),
            "through Slipstream": httpx.Client(base_url=ours.base_url, timeout=_TIMEOUT_SECONDS),
        }
        for turn in range(rounds + 1):
            for name, client in ways.items():
                ttft, rate = _stream(client)
                if turn:
                    first[name].append(ttft * 1000)
                    speed[name].append(rate)
    compare(f"time to first token, cached prompt, {rounds} rounds", "ms", first)
    compare(f"streaming {_TOKENS} tokens, {rounds} rounds", "tok/s", speed)


def _stream(client: httpx.Client) -> tuple[float, float]:
    """Seconds to the first content chunk; chunks a second after it."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": PROMPTS["says something new"]}],
        "stream": True,
        "max_tokens": _TOKENS,
        "temperature": 0,
    }
    began = time.perf_counter()
    arrivals: list[float] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if '"content":' in line:
                arrivals.append(time.perf_counter())
    return arrivals[0] - began, (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
