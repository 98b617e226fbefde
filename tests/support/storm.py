"""A storm over a real orchestrator: requests, swaps, new flags, restarts, kills and clients that leave, by a seed.

``python -m tests.support.storm --seconds 300 --seed 1`` (`make soak`) prints a table and exits with 1 if anything was
wrong. Two runs of one seed draw the same, and differ in how the machine interleaves it.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.orchestrator import Json, Orchestrator
from tests.support.polling import eventually
from tests.support.storm_clients import Clients
from tests.support.storm_house import House, furnish
from tests.support.storm_operator import Operators, text_of
from tests.support.storm_watch import Following, Watch
from tests.support.toybox import ToyBox

CLIENTS = 10
OPERATORS = 2
SETTLE_SECONDS = 30.0
# What pools of threads and of connections may hold beyond a fresh start, and what Python keeps of freed memory.
MORE_DESCRIPTORS = 8
MORE_THREADS = 8
MORE_BYTES = 64 << 20


@dataclass(frozen=True)
class Footprint:
    """What the orchestrator holds."""

    descriptors: int
    threads: int
    resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """What a process holds now."""
        proc = Path(f"/proc/{pid}")
        pages = int((proc / "statm").read_text().split()[1])
        return cls(
            len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())), pages * os.sysconf("SC_PAGE_SIZE")
        )

    def is_near(self, start: "Footprint") -> bool:
        """Whether nothing has leaked since `start`."""
        return (
            self.descriptors <= start.descriptors + MORE_DESCRIPTORS
            and self.threads <= start.threads + MORE_THREADS
            and self.resident_bytes <= start.resident_bytes + MORE_BYTES
        )


@dataclass
class Report:
    """What came of a storm; `wrong` is empty when all held."""

    lines: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    asked: int = 0
    answered: int = 0


def blow(house: House, *, requests: int, seconds: float, seed: int) -> Report:
    """A storm until so many requests have ended and so much time is over; then everything is looked over."""
    orchestrator = house.orchestrator
    models = [speaker.name for speaker in house.speakers]
    try:
        orchestrator.start()
        start = Footprint.of(orchestrator.pid)
        following = Following(orchestrator.base_url)
        clients = Clients(orchestrator.base_url, house.speakers, seed)
        operators = Operators(orchestrator.base_url, orchestrator.home, models, seed)
        with Watch(orchestrator, house.budget_bytes) as watch:
            asyncio.run(_blow(clients, operators, requests, seconds))
            wrong = _settled(orchestrator, operators, following)
        wrong += _back(orchestrator, models, start)
        end = Footprint.of(orchestrator.pid)
        orchestrator.send(signal.SIGTERM)
        if (status := orchestrator.wait()) != 0:
            wrong.append(f"the orchestrator ended with status {status}")
        following.join()
        wrong += [f"process {pid} is left" for pid in orchestrator.leftovers()]
        wrong += ["the log has a traceback"] if "Traceback" in orchestrator.log_text() else []
    finally:
        orchestrator.close()
    wrong = clients.tally.wrong + operators.wrong + watch.wrong + following.wrong + wrong
    return _report(house, clients, operators, watch, following, start, end, wrong)


async def _blow(clients: Clients, operators: Operators, requests: int, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.run(CLIENTS))
        group.create_task(operators.run(OPERATORS))
        await asyncio.sleep(seconds)
        await clients.tally.reaches(requests)
        operators.stopping.set()
        clients.stopping.set()


def _settled(orchestrator: Orchestrator, operators: Operators, following: Following) -> list[str]:
    """What is wrong once nobody asks for anything any more."""
    rests = 0

    def is_at_rest() -> bool:
        nonlocal rests
        servers = _servers(orchestrator)
        quiet = all(
            not s["waiting"] and not s["running"] and all(i["state"] == "ready" for i in s["instances"])
            for s in servers
        )
        rests = rests + 1 if quiet else 0
        return rests > 50

    try:
        eventually(is_at_rest, "nothing waits, loads or goes", SETTLE_SECONDS)
    except TimeoutError as e:
        return [f"{e}: {_servers(orchestrator)}"]
    wrong = []
    told: dict[int, tuple[str, str]] = {}
    for server in _servers(orchestrator):
        model, ledger = server["model"], operators.ledger
        told |= {i["id"]: (model, "ready") for i in server["instances"]}
        if server["desired"] not in ledger.states[model]:
            wrong.append(f"{model} is to be {server['desired']}, acknowledged was {ledger.states[model]}")
        if text_of(server["flags"]) not in ledger.flags[model]:
            wrong.append(f"{model} has the flags {server['flags']}, acknowledged were {ledger.flags[model]}")
    try:
        eventually(lambda: following.alive == told, "/api/events tells what /api/servers tells", 5.0)
    except TimeoutError as e:
        wrong.append(f"{e}: {following.alive}, {told}")
    return wrong


def _back(orchestrator: Orchestrator, models: list[str], start: Footprint) -> list[str]:
    """What is wrong when everything has been stopped."""
    for model in models:
        orchestrator.command(model, "stop").raise_for_status()
    if left := orchestrator.leftovers():
        return [f"processes {left} are left though every server was stopped"]
    try:
        eventually(lambda: Footprint.of(orchestrator.pid).is_near(start), "as little is held as at the start")
    except TimeoutError as e:
        return [f"{e}: {start} became {Footprint.of(orchestrator.pid)}"]
    return []


def _servers(orchestrator: Orchestrator) -> list[Json]:
    return list(orchestrator.http.get("/api/servers").raise_for_status().json()["servers"])


def _report(
    house: House,
    clients: Clients,
    operators: Operators,
    watch: Watch,
    following: Following,
    start: Footprint,
    end: Footprint,
    wrong: list[str],
) -> Report:
    tally = clients.tally
    waits = sorted(tally.waits_seconds) or [0.0]
    rows = [(f"requests: {outcome}", str(n)) for outcome, n in sorted(tally.outcomes.items())]
    rows += [("requests", str(tally.asked))]
    rows += [(f"commands: {what}", str(n)) for what, n in sorted(operators.done.items())]
    rows += [(f"transitions: {state}", str(n)) for state, n in sorted(following.counts.items())]
    rows += [
        ("wait for the first token, p50", f"{waits[len(waits) // 2]:.3f} s"),
        ("wait for the first token, p99", f"{waits[min(len(waits) - 1, len(waits) * 99 // 100)]:.3f} s"),
        ("invariants checked", f"{watch.checks} in {watch.looks} looks"),
        ("memory set aside at most", f"{watch.most_held_bytes >> 20} MiB of {house.budget_bytes >> 20} MiB"),
        ("descriptors, start and end", f"{start.descriptors}, {end.descriptors}"),
        ("threads, start and end", f"{start.threads}, {end.threads}"),
        ("resident, start and end", f"{start.resident_bytes >> 20} MiB, {end.resident_bytes >> 20} MiB"),
        ("wrong", str(len(wrong))),
    ]
    answered = tally.outcomes["plain answered"] + tally.outcomes["stream answered"]
    return Report([f"{name:<40} {value}" for name, value in rows], wrong, tally.asked, answered)


def main() -> int:
    """Blow over a house of its own."""
    parser = argparse.ArgumentParser(description="a storm over a real orchestrator")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long at least")
    parser.add_argument("--requests", type=int, default=1000, help="how many requests at least")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    binary = Path(os.environ["SLIPSTREAM_TEST_SERVER"])
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        house = furnish(Path(folder) / "home", binary, ToyBox(Path(folder)))
        report = blow(house, requests=arguments.requests, seconds=arguments.seconds, seed=arguments.seed)
        if report.wrong:
            kept = Path(tempfile.gettempdir()) / f"storm-{arguments.seed}.log"
            kept.write_text(house.orchestrator.log_text())
            print(f"the orchestrator's log: {kept}", file=sys.stderr)
    print("\n".join([*report.lines, *(f"WRONG: {what}" for what in report.wrong)]))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
