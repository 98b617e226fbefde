"""One streamed answer from a slot of a model, and what its client saw of it."""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.orchestrator import Orchestrator

Json = dict[str, Any]

_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """One answer, seen from its client; seconds by the client's clock.

    `accepted_by_step` counts verification steps by how many tokens they accepted. `arrivals` is how many events
    came. `flags` tells whether the model's flags were changed afterwards (`previous`) or not (`current`).
    """

    model: str
    slot: int
    flags: str
    timings: Mapping[str, float]
    accepted_by_step: Mapping[int, int]
    seconds: float
    first_token_seconds: float
    arrivals: int


def ask(house: Orchestrator, model: str, slot: int, tokens: int, flags: str, fields: Json) -> Answer:
    """An answer of exactly so many tokens, in that slot."""
    body = {
        **{"model": model, "id_slot": slot, "max_tokens": tokens, "ignore_eos": True, "temperature": 0},
        **{"messages": [{"role": "user", "content": f"{tokens} of {slot}"}], "stream": True},
        **{"speculative.metrics": True, **fields},
    }
    began = time.monotonic()
    first, arrivals = math.nan, 0
    end: Json = {}
    with (
        httpx.Client(base_url=house.base_url, timeout=_TIMEOUT_SECONDS, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            arrivals += 1
            chunk = json.loads(line.removeprefix("data: "))
            if math.isnan(first) and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.monotonic() - began
            end |= {name: chunk[name] for name in ("timings", "metrics") if name in chunk}
    seconds = time.monotonic() - began
    assert end["timings"]["predicted_n"] == tokens
    told = end["metrics"]["speculative_decoding"]
    steps = Counter(dict(enumerate(told["acceptance_histogram"]))) if told else Counter[int]()
    return Answer(model, slot, flags, end["timings"], steps, seconds, first, arrivals)
