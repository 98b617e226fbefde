"""One request: what it asks, and what came of it. Which request is the n-th depends on the seed and n alone."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orchestrator.cli.traffic.prompts import Messages, make
from orchestrator.client import ChatEnd, Client
from orchestrator.errors import SlipstreamError

CUT_OFF = "cut_off"


@dataclass(frozen=True)
class Request:
    """The n-th request of a plan."""

    number: int
    model: str
    kind: str
    messages: Messages
    fields: Mapping[str, Any]
    is_stream: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a request.

    `timings` is llama-server's object (see ChatEnd), empty where no whole answer came. `reason` says why there is
    none: the code of an error, or `cut_off`. `first_token_seconds` is known of streams alone.
    """

    request: Request
    seconds: float
    timings: Mapping[str, Any] = field(default_factory=dict)
    first_token_seconds: float | None = None
    reason: str | None = None
    message: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether an error came; what we ended ourselves has not failed."""
        return self.reason not in (None, CUT_OFF)


@dataclass(frozen=True)
class Plan:
    """Models in turns, kinds by weight, and of each answer whether it is streamed."""

    seed: int
    models: Sequence[str]
    mix: Mapping[str, float]
    stream_ratio: float
    max_tokens: int | None = None

    def request(self, number: int) -> Request:
        """The n-th, the same in every run with this plan."""
        source = Random(f"{self.seed} {number}")
        kind = source.choices(tuple(self.mix), weights=tuple(self.mix.values()))[0]
        is_stream = source.random() < self.stream_ratio
        messages, fields = make(kind, source)
        # Sampling is told a seed too, so that two runs ask for the same answers.
        fields |= {"seed": source.getrandbits(31)}
        if self.max_tokens is not None:
            fields["max_tokens"] = min(self.max_tokens, fields["max_tokens"])
        return Request(number, self.models[number % len(self.models)], kind, messages, fields, is_stream)

    def arrivals(self, per_second: float) -> "Arrivals":
        """When each request is due at this rate: as independent users come, not in step."""
        return Arrivals(Random(f"{self.seed} arrivals"), per_second)


class Arrivals:
    """Seconds from the start at which the next request is due, of a Poisson process."""

    def __init__(self, source: Random, per_second: float) -> None:
        self._source, self._per_second = source, per_second
        self._at = 0.0

    def next(self) -> float:
        """The first one is due at once."""
        due, self._at = self._at, self._at + self._source.expovariate(self._per_second)
        return due


def run_request(client: Client, request: Request, fields: Mapping[str, Any] | None = None) -> Outcome:
    """Ask, wait for the whole answer and say what came; an error is told in the outcome, never raised.

    `fields` go before those of the request, such as `{"speculative.n_max": 0}` for an answer without drafts.
    """
    asked = {**request.fields, **(fields or {})}
    began = time.monotonic()
    first: float | None = None
    timings: Mapping[str, Any] = {}
    try:
        if request.is_stream:
            with closing(client.chat(request.model, request.messages, asked)) as events:
                for event in events:
                    if isinstance(event, ChatEnd):
                        timings = event.timings
                    elif first is None:
                        first = time.monotonic() - began
        else:
            timings = client.complete(request.model, request.messages, asked).timings
    except SlipstreamError as e:
        return Outcome(request, time.monotonic() - began, first_token_seconds=first, reason=e.code, message=e.message)
    return Outcome(request, time.monotonic() - began, timings, first)
