"""Two conversations in turns on a hybrid model: each finds its slot as it left it."""

from typing import Any

import pytest

from tests.integration.orchestrator.conftest import THREADS, MakeOrchestrator
from tests.support import ToyBox
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 20}
TURNS = 4
# No checkpoint to go back to: what keeps several ROCm devices from crashing, and where affinity is worth most.
FLAGS = THREADS | {"ctx_size": 16384, "parallel": 2, "ctx_checkpoints": 0, "cache_ram": 0}


def reused(ours: Orchestrator, model: str) -> float:
    """Part of the prompts' tokens that was not read again, after the first turn of each."""
    cached = read = 0
    chats: dict[str, list[Json]] = {name: [SYSTEM] for name in ("one", "two")}
    for turn in range(TURNS):
        for name, messages in chats.items():
            messages.append({"role": "user", "content": f"{name}: {turn}. " * 10})
            body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
            answer = ours.http.post("/v1/chat/completions", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            if turn:
                cached += answer["timings"]["cache_n"]
                read += answer["timings"]["prompt_n"]
    return cached / (cached + read)


def test_conversations_in_turns(make_orchestrator: MakeOrchestrator, toys: ToyBox) -> None:
    ours = make_orchestrator()
    for affinity, erase in (("off", "off"), ("on", "off"), ("on", "on")):
        slots = {"affinity": affinity, "erase": erase}
        speculation = {"type": "draft-mtp"}
        name = f"hybrid-{affinity}-{erase}"
        ours.write_model(name, toys.hybrid().path, server=FLAGS, slots=slots, speculation=speculation)
    with running_orchestrator(ours):
        assert reused(ours, "hybrid-off-off") < 0.1
        assert reused(ours, "hybrid-on-off") > 0.7
        assert reused(ours, "hybrid-on-on") > 0.7, "a conversation that goes on is not erased"
