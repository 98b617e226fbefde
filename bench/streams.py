"""Many streams at a time: asked directly, through Slipstream, llama-server's router mode and LiteLLM's proxy.

The paced upstream (bench/peers/paced.py) costs next to nothing and gives every stream the same pace, so what is late or
missing is the proxy's doing. The router can only front llama-servers, so it is measured in front of a real one, whose
streams are as fast as the machine.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.load import Address, Answer, ask, measured, percentile, staggered
from bench.peers import paced
from bench.peers.litellm import running_litellm
from bench.peers.router import running_router
from bench.processes import children_of, cpu_seconds
from bench.report import ratios, spread, table
from tests.support import ToyBox
from tests.support.orchestrator import ChildServer, Orchestrator, running_orchestrator

_MODEL = "toy"
_PATH = "/v1/chat/completions"
_TIMEOUT_SECONDS = 300.0
# A stream has kept its pace if it has lost less than this share of it.
_LOST_PACE = 0.02


@dataclass(frozen=True)
class Load:
    """So many streams of so many tokens, begun so far apart; pace 0 is as fast as it goes."""

    streams: int
    tokens: int
    pace: float
    seconds_apart: float

    def __str__(self) -> str:
        pace = f"at {self.pace:g} tokens/s each" if self.pace else "as fast as they go"
        return f"{self.streams} streams of {self.tokens} tokens, {pace}"


@dataclass
class Way:
    """One way to the model, and what was seen on it; `used` tells the CPU seconds of the proxy."""

    name: str
    address: Address
    used: Callable[[], float]
    answers: list[list[Answer]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def each(self, figure: Callable[[list[Answer]], float]) -> list[float]:
        """A figure of each round."""
        return [figure(answers) for answers in self.answers]


_PACED = (Load(64, 200, 100.0, 0.0097), Load(256, 50, 10.0, 0.0049))
_FLAT_OUT = Load(64, 200, 0.0, 0.0)


def run(server: Path, rounds: int) -> None:
    """Print a table for each load."""
    for load in _PACED:
        with TemporaryDirectory() as folder:
            program = paced.program(Path(folder), load.pace)
            with _ways(program, Path(folder), load) as ways:
                _measure(ways, load, rounds)
        _print_paced(ways, load, rounds)
    with TemporaryDirectory() as folder, _ways(server, Path(folder), _FLAT_OUT) as ways:
        _measure(ways, _FLAT_OUT, rounds)
    _print_flat_out(ways, rounds)


@contextmanager
def _ways(program: Path, home: Path, load: Load) -> Iterator[list[Way]]:
    """Everything started, in front of the same server as far as possible: the router has one of its own."""
    toy = ToyBox(home).pair().path
    flags: dict[str, str | int | bool] = {"parallel": load.streams}
    if not load.pace:
        flags |= {"ctx_size": 512 * load.streams, "threads": 1, "threads_http": 2 * load.streams}
    with ExitStack() as stack:
        ours = stack.enter_context(running_orchestrator(Orchestrator(home, program)))
        ours.write_model(_MODEL, toy, server=flags)
        child = ours.start_model(_MODEL)
        direct = Address.of(child.url, child.api_key)
        ways = [
            Way("llama-server itself" if not load.pace else "the upstream itself", direct, lambda: 0.0),
            Way("Slipstream", Address.of(ours.base_url), lambda: cpu_seconds(ours.pid, [child.pid])),
        ]
        if not load.pace:
            ways.append(_router(stack, program, toy, flags, home))
        workers = (1, os.cpu_count() or 1) if load is _PACED[0] else (1,)
        for count in dict.fromkeys(workers):
            proxy, address = stack.enter_context(running_litellm(direct, _MODEL, home, count))
            name = f"LiteLLM, {count} worker{'s' if count > 1 else ''}"
            ways.append(Way(name, address, lambda pid=proxy.pid: cpu_seconds(pid)))  # type: ignore[misc]
        _require_child(ours, child)
        yield ways


def _router(stack: ExitStack, server: Path, toy: Path, flags: dict[str, str | int | bool], home: Path) -> Way:
    preset = {name.replace("_", "-"): value for name, value in flags.items()} | {"offline": True}
    router, url = stack.enter_context(running_router(server, {_MODEL: toy}, preset, home, 1))
    return Way("router mode", Address.of(url), lambda: cpu_seconds(router.pid, children_of(router.pid)))


def _require_child(ours: Orchestrator, child: ChildServer) -> None:
    if ours.view(_MODEL)["pid"] != child.pid:
        raise RuntimeError("the server was started anew while it was measured")


def _measure(ways: Sequence[Way], load: Load, rounds: int) -> None:
    """Each way in turns, another one first in every round; the first round warms up."""
    body = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": "Tell me about slipstreams."}],
        "max_tokens": load.tokens,
        "stream": True,
        "temperature": 0,
    }
    for turn in range(rounds + 1):
        start = turn % len(ways)
        for way in (*ways[start:], *ways[:start]):
            before = way.used()
            answers = measured(
                lambda way=way: staggered(  # type: ignore[misc]
                    load.streams, load.seconds_apart, lambda: ask(way.address, _PATH, body, _TIMEOUT_SECONDS)
                )
            )
            if turn:
                way.answers.append(answers)
                way.cpu.append(way.used() - before)


def _print_paced(ways: Sequence[Way], load: Load, rounds: int) -> None:
    base = ways[0].each(_first_ms)
    rows = []
    for way in ways:
        kept = min(way.each(lambda answers: sum(_keeps(answer, load) for answer in answers)))
        delays = [delay * 1000 for answers in way.answers for answer in answers for delay in answer.delays]
        rows.append(
            [
                way.name,
                _whole(way, load.tokens),
                f"{kept:g} of {load.streams}",
                f"{min(way.each(lambda answers: min(a.pace for a in answers))) / load.pace:.2f}",
                *_firsts(way, base),
                f"{median(delays):.1f}, {percentile(delays, 0.99):.1f}" if delays else "-",
                _cpu(way),
            ]
        )
    header = ["way", "whole answers", "at full pace, worst round", "slowest stream / asked pace", *_FIRSTS]
    table(f"{load}, {rounds} rounds", [*header, "chunk's delay, ms: median, p99", _CPU], rows)


def _print_flat_out(ways: Sequence[Way], rounds: int) -> None:
    base, base_rate = ways[0].each(_first_ms), ways[0].each(_rate)
    # A character of several tokens is one chunk.
    tokens = ways[0].answers[0][0].tokens
    rows = [
        [
            way.name,
            _whole(way, tokens),
            spread(way.each(_rate), 0),
            ratios(way.each(_rate), base_rate),
            *_firsts(way, base),
            _cpu(way),
        ]
        for way in ways
    ]
    header = ["way", "whole answers", "tokens/s of all", "ratio to the first, by round", *_FIRSTS, _CPU]
    table(f"{_FLAT_OUT}, from a llama-server with a toy, {rounds} rounds", header, rows)


_FIRSTS = ("first token, ms: median, p99", "added, ms")
_CPU = "CPU s of the proxy for 1,000 chunks"


def _firsts(way: Way, base: Sequence[float]) -> list[str]:
    """Median and 99th percentile of all; median of what was added, by round."""
    every = [answer.first_seconds * 1000 for answers in way.answers for answer in answers if answer.first]
    if not every:
        return ["-", "-"]
    added = [ours - direct for ours, direct in zip(way.each(_first_ms), base, strict=True)]
    return [f"{median(every):.1f}, {percentile(every, 0.99):.1f}", f"{median(added):.1f}"]


def _first_ms(answers: Sequence[Answer]) -> float:
    return 1000 * median(answer.first_seconds for answer in answers)


def _rate(answers: Sequence[Answer]) -> float:
    return sum(a.tokens for a in answers) / (max(a.last for a in answers) - min(a.began for a in answers))


def _keeps(answer: Answer, load: Load) -> bool:
    return answer.is_whole and answer.tokens == load.tokens and answer.pace >= load.pace * (1 - _LOST_PACE)


def _whole(way: Way, tokens: int) -> str:
    every = [answer for answers in way.answers for answer in answers]
    return f"{sum(a.is_whole and a.tokens == tokens for a in every)} of {len(every)}"


def _cpu(way: Way) -> str:
    chunks = way.each(lambda answers: sum(answer.tokens for answer in answers))
    return f"{median(1000 * used / max(1, of) for used, of in zip(way.cpu, chunks, strict=True)):.3f}"
