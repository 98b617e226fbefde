"""From a request for a model that is not loaded to its first token, while another one holds the room.

Beside it: llama-server started by hand, by the same arguments, asked as soon as /health says so; and router mode.
"""

import http.client
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.load import Address, ask, measured
from bench.model import smollm2
from bench.peers.router import running_router
from bench.processes import end, free_port, spawn
from bench.report import ratios, spread, table
from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, argv_of, environment_of, running_orchestrator

_ONE, _OTHER = "one", "other"
_POLL_SECONDS = 0.005
_TIMEOUT_SECONDS = 120.0
_NEEDS_BYTES = 600 << 20
_TRANSITION = re.compile(r"^(\S+ \S+) INFO +(\w+) \(\d+ on \w+\): (\w+): ", re.M)
_Flags = dict[str, str | int | bool]
_BY_HAND = "by hand: start it, ask"


def run(server: Path, rounds: int) -> None:
    """Print seconds to the first token of each way, in turns, for a toy and for a small real model."""
    with TemporaryDirectory() as folder:
        toys = ToyBox(Path(folder))
        other = toys.pair(seed=1).path
        _compare(server, "a toy", toys.pair(seed=2).path, other, {"parallel": 1, "threads": 1}, rounds)
        real: _Flags = {"parallel": 2, "threads": 2, "ctx_size": 8192}
        _compare(server, "SmolLM2-135M", smollm2(), other, real, rounds)


def _compare(server: Path, what: str, one: Path, other: Path, flags: _Flags, rounds: int) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        room = {"MEMORY": f"host={_NEEDS_BYTES * 3 // 2}", "LOG_FORMAT": "text"}
        ours = stack.enter_context(running_orchestrator(Orchestrator(home, server, room)))
        for name, path in ((_ONE, one), (_OTHER, other)):
            ours.write_model(name, path, server=flags, place={"memory": {"host": _NEEDS_BYTES}})
        child = ours.start_model(_ONE)
        hand = _Hand(argv_of(child.pid), environment_of(child.pid), home)
        preset = {name.replace("_", "-"): value for name, value in flags.items()} | {"offline": True}
        _, router = stack.enter_context(running_router(server, {_ONE: one, _OTHER: other}, preset, home, 1))
        ways: dict[str, Callable[[], float]] = {
            _BY_HAND: hand.start,
            "by hand: stop the other one, start it, ask": hand.swap,
            "Slipstream: ask": partial(_asked, Address.of(ours.base_url)),
            "router mode: ask": partial(_asked, Address.of(router)),
        }
        names = list(ways)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found = ways[name]()
                if turn:
                    seconds[name].append(1000 * found)
        phases = _phases(ours.log_text(), rounds)
    rows = [[name, spread(seconds[name]), ratios(seconds[name], seconds[_BY_HAND])] for name in names]
    table(f"to the first token of {what}, not loaded, {rounds} rounds", ["way", "ms", "ratio to the first"], rows)
    rest = median(seconds["Slipstream: ask"]) - sum(phases.values())
    rows = [[f"{value:.0f}" for value in (*phases.values(), rest)]]
    table(f"Slipstream's part of it, {what}, medians in ms", [*phases, "the rest, first token included"], rows)


def _asked(address: Address) -> float:
    """The other one is loaded, then this one is asked."""
    measured(lambda: _first(address, _OTHER))
    return measured(lambda: _first(address, _ONE))


async def _first(address: Address, model: str) -> float:
    """Seconds to the first token of a short answer, which is read to its end."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 4, "stream": True, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": body.pop("prompt")}]}
    answer = await ask(address, "/v1/chat/completions", body | chat, _TIMEOUT_SECONDS)
    if not answer.is_whole:
        raise RuntimeError(f"{model}: status {answer.status}: {answer.error or answer.body.decode(errors='replace')}")
    return answer.first_seconds


class _Hand:
    """What a user's script does, with the arguments and the environment of the server that we started."""

    def __init__(self, argv: list[str], environment: dict[str, str], home: Path) -> None:
        self._argv, self._home = argv, home
        self._environment = {k: v for k, v in environment.items() if k != "LLAMA_API_KEY"}

    def start(self) -> float:
        """Seconds from the start of the process to the first token."""
        return self._measured(lambda: None)

    def swap(self) -> float:
        """The same from the request to end another server, which has answered a request."""
        other, port = self._spawn()
        try:
            _until_healthy(other, port)
            measured(lambda: _first(Address("127.0.0.1", port), _ONE))
            return self._measured(lambda: end(other))
        finally:
            end(other)

    def _measured(self, before: Callable[[], None]) -> float:
        started: list[subprocess.Popen[bytes]] = []

        async def work() -> float:
            began = time.perf_counter()
            before()
            process, port = self._spawn()
            started.append(process)
            _until_healthy(process, port)
            asked = time.perf_counter()
            return asked - began + await _first(Address("127.0.0.1", port), _ONE)

        try:
            return measured(work)
        finally:
            for process in started:
                end(process)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        argv = list(self._argv)
        argv[argv.index("--port") + 1] = str(port)
        return spawn(argv, self._home / "by-hand.log", self._environment), port


def _until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health", headers={"Connection": "close"})
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(_POLL_SECONDS)
    raise RuntimeError("llama-server started by hand is not healthy")


def _phases(log: str, rounds: int) -> dict[str, float]:
    """Medians, in ms, of what the orchestrator logged of the last swaps."""
    names = {
        "the other one stops": (_OTHER, "stopping", "gone"),
        "it loads": (_ONE, "loading", "warming"),
        "it warms up": (_ONE, "warming", "ready"),
    }
    at: dict[tuple[str, str], list[float]] = defaultdict(list)
    for when, model, state in _TRANSITION.findall(log):
        at[model, state].append(1000 * datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp())
    return {
        name: median(b - a for a, b in zip(at[m, first][-rounds:], at[m, second][-rounds:], strict=True))
        for name, (m, first, second) in names.items()
    }
