"""What the gateway adds: time to first token and tokens per second, against the same server asked directly."""

import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.model import MODELS, PROMPTS
from bench.report import compare
from tests.support.orchestrator import running_orchestrator

_TOKENS = 100


def run(server: Path, rounds: int) -> None:
    """Print both figures for both ways, in turns, over one llama-server."""
    first: dict[str, list[float]] = defaultdict(list)
    speed: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, running_orchestrator(server, MODELS, Path(folder)) as ours:
        httpx.post(f"{ours.url}/api/servers/smollm2-135m/start", timeout=600).raise_for_status()
        direct_url, direct_key = ours.child_address("smollm2-135m")
        ways = {
            "llama-server itself": (direct_url, {"authorization": f"Bearer {direct_key}"}),
            "through Slipstream": (ours.url, {}),
        }
        for turn in range(rounds + 1):
            for name, (url, headers) in ways.items():
                ttft, rate = _stream(url, headers)
                if turn:
                    first[name].append(ttft * 1000)
                    speed[name].append(rate)
    compare(f"time to first token, cached prompt, {rounds} rounds", "ms", first)
    compare(f"streaming {_TOKENS} tokens, {rounds} rounds", "tok/s", speed)


def _stream(url: str, headers: dict[str, str]) -> tuple[float, float]:
    """Seconds to the first content chunk; chunks a second after it."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": PROMPTS["says something new"]}],
        "stream": True,
        "max_tokens": _TOKENS,
        "temperature": 0,
        "speculative.n_max": 0,
    }
    began = time.perf_counter()
    arrivals: list[float] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if '"content":' in line:
                arrivals.append(time.perf_counter())
    return arrivals[0] - began, (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
