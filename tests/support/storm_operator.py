"""Operators of a storm: they swap, set flags, start, stop, restart, and kill servers; and what they were promised."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.orchestrator import argv_of
from tests.support.storm_house import FLAGS

Json = dict[str, Any]
Want = tuple[str, str]

HANG_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 0.6
# Loaded and refused by llama-server itself.
FAILING_FLAGS: Json = {"cache-type-k": "nonsense"}
UNKNOWN_FLAGS: Json = {"ctx-siez": 1}


@dataclass
class Ledger:
    """Desired states and flags as acknowledged, by model. Where commands overlapped there are several that may be."""

    states: dict[str, set[str]]
    flags: dict[str, set[str]]
    _under_way: dict[int, "Command"] = field(default_factory=dict)

    @classmethod
    def of(cls, models: list[str]) -> "Ledger":
        """All stopped, without flags."""
        return cls({m: {"stopped"} for m in models}, {m: {"{}"} for m in models})

    def begin(self, command: "Command") -> None:
        """A command goes out."""
        for other in self._under_way.values():
            shared = command.models & other.models
            command.overlapped |= shared
            other.overlapped |= shared
        self._under_way[id(command)] = command

    def end(self, command: "Command", *, acknowledged: bool) -> None:
        """Its answer is there."""
        del self._under_way[id(command)]
        for book, promised in ((self.states, command.states), (self.flags, command.flags)):
            for model, values in promised.items():
                if model in command.overlapped:
                    book[model] = book[model] | values
                elif acknowledged:
                    book[model] = set(values)


@dataclass(eq=False)
class Command:
    """A call, and what is wanted of which model once it is acknowledged."""

    method: str
    path: str
    body: Json | None = None
    states: dict[str, set[str]] = field(default_factory=dict)
    flags: dict[str, set[str]] = field(default_factory=dict)
    overlapped: set[str] = field(default_factory=set)
    allowed: frozenset[int] = frozenset({200, 409, 503})

    @property
    def models(self) -> set[str]:
        """Whom it is about."""
        return {*self.states, *self.flags}


@dataclass
class Operators:
    """Some operators at a time, until told to stop."""

    base_url: str
    home: Path
    models: list[str]
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.ledger = Ledger.of(self.models)

    async def run(self, operators: int) -> None:
        """Command until `stopping`; every command that was begun ends first."""
        timeout = aiohttp.ClientTimeout(total=HANG_SECONDS)
        async with (
            aiohttp.ClientSession(self.base_url, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for number in range(operators):
                group.create_task(self._command_on(session, random.Random(f"{self.seed} operator {number}")))

    async def _command_on(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        kinds = ("swap", "flags", "restart", "start", "stop", "kill", "clear", "failing flags", "unknown flags")
        weights = (4, 4, 3, 3, 1, 4, 2, 1, 1)
        while not self.stopping.is_set():
            kind = chance.choices(kinds, weights)[0]
            if kind == "kill":
                await self._kill(session, chance)
            else:
                await self._carry_out(session, kind, self._command(kind, chance))
            await asyncio.sleep(chance.random() * LONGEST_PAUSE_SECONDS)

    def _command(self, kind: str, chance: random.Random) -> Command:
        model, *others = chance.sample(self.models, len(self.models))
        put = f"/api/servers/{model}"
        if kind == "swap":
            stop = chance.choice([None, others[:1], others[:2]])
            body: Json = {"start": model} | ({} if stop is None else {"stop": stop})
            # Without a list those that are up are stopped; which ones these are is seen by the orchestrator alone.
            states = {m: {"stopped"} for m in stop or ()}
            states |= {} if stop is not None else {m: {"stopped", *self.ledger.states[m]} for m in others}
            return Command("POST", "/api/swap", body, states | {model: {"running"}})
        if kind == "flags":
            flags = chance.choice(FLAGS)
            return Command("PUT", put, {"flags": flags}, flags={model: {text_of(flags)}})
        if kind == "failing flags":
            # Of a server that is not up they are kept, and tried at its next start; so that one is started.
            body = {"state": "running", "flags": FAILING_FLAGS}
            return Command("PUT", put, body, {model: {"running"}}, {model: {text_of(FAILING_FLAGS)}})
        if kind == "unknown flags":
            return Command("PUT", put, {"flags": UNKNOWN_FLAGS}, allowed=frozenset({422}))
        states = {"start": {model: {"running"}}, "stop": {model: {"stopped"}}}.get(kind, {})
        return Command("POST", f"{put}/{kind}", None, states)

    async def _carry_out(self, session: aiohttp.ClientSession, kind: str, command: Command) -> None:
        self.ledger.begin(command)
        status = 0
        try:
            async with session.request(command.method, command.path, json=command.body) as response:
                text = await response.text()
            status = response.status
            if status not in command.allowed:
                self.wrong.append(f"{kind}: {command.path} {command.body}: {status} {text[:300]}")
        except (aiohttp.ClientError, TimeoutError) as e:
            self.wrong.append(f"{kind}: {command.path} {command.body}: {e!r}")
        finally:
            self.ledger.end(command, acknowledged=status == 200)
        self.done[kind if status == 200 else f"{kind}: {status}"] += 1

    async def _kill(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        async with session.get("/api/servers") as response:
            servers = (await response.json())["servers"]
        pids = [i["pid"] for server in servers for i in server["instances"] if i["pid"] is not None]
        pid = chance.choice(pids) if pids else 0
        if any(str(self.home) in argument for argument in argv_of(pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.done["kill"] += 1


def text_of(flags: Json) -> str:
    """Flags as the ledger keeps them."""
    return json.dumps(flags, sort_keys=True)
