"""Ten thousand short requests for four models with room for two: none lost, none answered by the wrong one.

A toy says what its table says, so every answer is known beforehand, and no two toys give the same one.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.load import Address, Answer, ask, measured, percentile
from bench.peers.router import loads_in, running_router
from bench.report import spread, table
from tests.support import Toy, ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.toys import vocabulary

_REQUESTS = 10_000
_CONCURRENCY = 64
_MODELS = ("amber", "birch", "cedar", "drift")
_ROOM = 2
_BURST = 100
_TOKENS = (4, 5, 6, 7, 8)
_TIMEOUT_SECONDS = 600.0
_NEEDS_BYTES = 600 << 20
_FLAGS: dict[str, str | int | bool] = {"parallel": 8, "ctx_size": 4096, "threads": 1}
# A round takes minutes.
_MOST_ROUNDS = 2


@dataclass(frozen=True)
class Request:
    """A prompt for a model, and what that model says to it."""

    model: str
    prompt: str
    tokens: int
    expected: str

    def is_right(self, answer: Answer) -> bool:
        """Whether the answer is that model's; `model` in it and the text both tell."""
        try:
            said = json.loads(answer.body)
            return bool(said["model"] == self.model and said["choices"][0]["text"] == self.expected)
        except (ValueError, LookupError, TypeError):
            return False


@dataclass
class Outcome:
    """What became of the requests on one way, round by round."""

    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    lost: int = 0
    wrong: int = 0
    complaints: set[str] = field(default_factory=set)


def run(server: Path, rounds: int) -> None:
    """Print what became of them through Slipstream and through router mode, for each order."""
    rounds = min(rounds, _MOST_ROUNDS)
    with TemporaryDirectory() as folder:
        toys = ToyBox(Path(folder))
        models = {name: toys.pair(seed=21 + number) for number, name in enumerate(_MODELS)}
        pool = list(_known(models))
        orders = {"uniformly at random": 1, f"in bursts of {_BURST} for one model": _BURST}
        for order, burst in orders.items():
            outcomes = {"Slipstream": Outcome(), "router mode": Outcome()}
            for turn in range(rounds):
                requests = _requests(pool, burst, random.Random(turn))
                _through_slipstream(server, models, requests, outcomes["Slipstream"])
                _through_router(server, models, requests, outcomes["router mode"])
            _print(order, outcomes, rounds)


def _known(models: dict[str, Toy]) -> Iterator[Request]:
    """Requests whose answers are whole characters and differ between all models."""
    for prompt in map(chr, range(0x21, 0x7F)):
        for tokens in _TOKENS:
            said = {name: toy.language.greedy(ord(prompt), tokens) for name, toy in models.items()}
            try:
                texts = {name: vocabulary.detokenize(ids).decode() for name, ids in said.items()}
            except UnicodeDecodeError:
                continue
            if len(set(texts.values())) == len(models):
                yield from (Request(name, prompt, tokens, text) for name, text in texts.items())


def _requests(pool: Sequence[Request], burst: int, source: random.Random) -> list[Request]:
    by_model = {name: [request for request in pool if request.model == name] for name in _MODELS}
    chosen = (source.choice(_MODELS) for _ in range(-(-_REQUESTS // burst)))
    return [source.choice(by_model[name]) for name in chosen for _ in range(burst)][:_REQUESTS]


def _through_slipstream(server: Path, models: dict[str, Toy], requests: Sequence[Request], outcome: Outcome) -> None:
    settings = {"MEMORY": f"host={_NEEDS_BYTES * _ROOM + (_NEEDS_BYTES >> 1)}"}
    with TemporaryDirectory() as folder:
        ours = Orchestrator(Path(folder), server, settings)
        for name, toy in models.items():
            ours.write_model(name, toy.path, server=_FLAGS, place={"memory": {"host": _NEEDS_BYTES}})
        with running_orchestrator(ours):
            _send(Address.of(ours.base_url), requests, outcome)
            outcome.loads.append(ours.log_text().count(": loading: "))


def _through_router(server: Path, models: dict[str, Toy], requests: Sequence[Request], outcome: Outcome) -> None:
    preset = {name.replace("_", "-"): value for name, value in _FLAGS.items()} | {"offline": True}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        paths = {name: toy.path for name, toy in models.items()}
        _, url = stack.enter_context(running_router(server, paths, preset, Path(folder), _ROOM))
        _send(Address.of(url), requests, outcome)
        outcome.loads.append(loads_in(Path(folder)))


def _send(address: Address, requests: Sequence[Request], outcome: Outcome) -> None:
    """All of them, so many at a time, in the order given."""
    answers = measured(lambda: _answers(address, requests))
    took = max(answer.last for answer in answers) - min(answer.began for answer in answers)
    outcome.rates.append(len(answers) / took)
    for request, answer in zip(requests, answers, strict=True):
        if answer.status != 200 or not answer.is_whole:
            outcome.lost += 1
            said = answer.body[:200].decode(errors="replace")
            outcome.complaints.add(f"{answer.status} {answer.error or said}")
            continue
        outcome.seconds.append(answer.last - answer.began)
        if not request.is_right(answer):
            outcome.wrong += 1
            outcome.complaints.add(f"expected {request}, got {answer.body[:200]!r}")


async def _answers(address: Address, requests: Sequence[Request]) -> list[Answer]:
    answers: list[Answer | None] = [None] * len(requests)
    numbered = iter(enumerate(requests))

    async def work() -> None:
        for number, request in numbered:
            answers[number] = await ask(address, "/v1/completions", _body(request), _TIMEOUT_SECONDS)

    await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
    return [answer for answer in answers if answer is not None]


def _body(request: Request) -> dict[str, Any]:
    return {"model": request.model, "prompt": request.prompt, "max_tokens": request.tokens, "temperature": 0}


def _print(order: str, outcomes: dict[str, Outcome], rounds: int) -> None:
    rows = [
        [
            *(name, str(found.lost), str(found.wrong), spread(found.rates, 0)),
            f"{1000 * median(found.seconds):.0f}",
            f"{1000 * percentile(found.seconds, 0.99):.0f}",
            spread([float(loads) for loads in found.loads], 0),
        ]
        for name, found in outcomes.items()
    ]
    header = ["way", "lost", "wrong", "requests/s", "p50, ms", "p99, ms", "loads"]
    what = f"{_REQUESTS:,} requests for {len(_MODELS)} toys with room for {_ROOM}, {_CONCURRENCY} at a time"
    table(f"{what}, {order}, {rounds} rounds", header, rows)
    for name, found in outcomes.items():
        for complaint in sorted(found.complaints)[:5]:
            print(f"{name}: {complaint}")
