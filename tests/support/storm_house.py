"""What a storm blows over: five toys whose every answer is known, and an orchestrator with room for two of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.orchestrator import Json, Orchestrator, running_orchestrator
from tests.support.toybox import Toy, ToyBox
from tests.toys import Language
from tests.toys.vocabulary import detokenize

THREADS: Json = {"threads": 1, "spec_draft_threads": 1}
CTX_TOKENS = 4096
SLOTS = 2
# What may be generated in a slot, the prompt aside.
MOST_TOKENS = CTX_TOKENS // SLOTS - 200
FLAGS: tuple[Json, ...] = ({}, {"ctx-size": 6144}, {"ubatch-size": 256})
SETTINGS = {
    "WAIT_TIMEOUT_SECONDS": "20",
    "DRAIN_TIMEOUT_SECONDS": "1",
    "KEEP_ALIVE_SECONDS": "0.2",
    "SHUTDOWN_TIMEOUT_SECONDS": "1",
    "START_TIMEOUT_SECONDS": "30",
}
# What follows a chat's prompt depends on its last token alone: the template ends with a line feed.
LAST_OF_PROMPT = ord("\n")


@dataclass(frozen=True)
class Speaker:
    """A toy under its name, and what it says at temperature 0."""

    name: str
    language: Language

    def says(self, tokens: int) -> str:
        """The only right answer of so many tokens."""
        # A character that the last token cuts is held back by llama-server.
        return detokenize(self.language.greedy(LAST_OF_PROMPT, tokens)).decode(errors="ignore")


@dataclass(frozen=True)
class House:
    """An orchestrator, not started, its toys, and the RAM its servers may hold."""

    orchestrator: Orchestrator
    speakers: tuple[Speaker, ...]
    budget_bytes: int


def furnish(home: Path, binary: Path, toys: ToyBox) -> House:
    """Write the model files; start each toy in all its shapes once, so that what each needs is known."""
    orchestrator = Orchestrator(home, binary, dict(SETTINGS))
    speakers = tuple(
        _write(orchestrator, name, toy, fields)
        for name, toy, fields in (
            ("ann", toys.pair(seed=11), {"keep": {"priority": 1}}),
            ("bob", toys.mtp(seed=12), _drafts("draft-mtp") | {"keep": {"idle_seconds": 1}}),
            ("cyd", toys.pair(seed=13), _drafts("draft-simple")),
            ("dan", toys.mtp(seed=14), _drafts("draft-mtp")),
            ("eve", toys.pair(seed=15), {"limits": {"concurrent": 2, "waiting": 2}}),
        )
    )
    needs = {speaker.name: 0 for speaker in speakers}
    with running_orchestrator(orchestrator):
        for name in needs:
            for flags in FLAGS:
                for _ in range(2):
                    # The second start goes by what was measured of the first one.
                    needs[name] = max(needs[name], _start(orchestrator, name, flags))
            orchestrator.http.put(f"/api/servers/{name}", json={"state": "stopped", "flags": {}}).raise_for_status()
        orchestrator.close()
    budget_bytes = sum(sorted(needs.values())[-2:])
    orchestrator.settings = SETTINGS | {"MEMORY": f"host={budget_bytes}"}
    return House(orchestrator, speakers, budget_bytes)


def _drafts(kind: str) -> Json:
    return {"speculation": {"type": kind, "n_max": 3}}


def _write(orchestrator: Orchestrator, name: str, toy: Toy, fields: dict[str, Any]) -> Speaker:
    if fields.get("speculation", {}).get("type") == "draft-simple":
        assert toy.drafter is not None
        fields = fields | {"drafter": {"path": orchestrator.link(toy.drafter)}}
    server = THREADS | {"ctx_size": CTX_TOKENS, "parallel": SLOTS}
    orchestrator.write_model(name, toy.path, server=server, **fields)
    return Speaker(name, toy.language)


def _start(orchestrator: Orchestrator, name: str, flags: Json) -> int:
    """Bytes that a fresh server of it is said to need."""
    body = {"state": "running", "flags": flags}
    orchestrator.http.put(f"/api/servers/{name}", json=body).raise_for_status()
    view = orchestrator.command(name, "restart").raise_for_status().json()
    return max(int(sum(instance["needs_bytes"].values())) for instance in view["instances"])
