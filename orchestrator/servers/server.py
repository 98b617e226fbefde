"""The record of one model's servers: what is wanted of it, what runs, who waits, how it has failed."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure, ServerState
from orchestrator.servers.drivers.base import Child
from orchestrator.servers.hosts import Goal
from orchestrator.servers.instance import Instance
from orchestrator.servers.launch import Launch, changes
from orchestrator.servers.lease import Lease
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.scheduling import Phase
from orchestrator.servers.scheduling.quarantine import backoff_seconds

if TYPE_CHECKING:
    from orchestrator.servers.operation import Operation

_REFUSED = {
    Code.MODEL_INCOMPLETE: "incomplete",
    Code.PREFLIGHT_FAILED: "preflight",
    Code.HAZARD: "hazard",
    Code.DOES_NOT_FIT: "does_not_fit",
}
# A server that served this long before it died has not failed at once: its strikes are forgotten.
_STEADY_SECONDS = 60.0
# Which of several instances stands for the server.
_ORDER = (Phase.READY, Phase.LOADING, Phase.DRAINING, Phase.STOPPING)


@dataclass(eq=False)
class Waiter:
    """A request that waits for a lease."""

    future: asyncio.Future[Lease]
    since: float


@dataclass(eq=False)
class Server:
    """One model. Only the scheduler and its commands write here, on the event loop."""

    model: str
    log: LogBuffer
    goals: tuple[Goal, ...] = ()
    generation: int = 0
    operation: "Operation | None" = None
    instances: list[Instance] = field(default_factory=list)
    waiting: deque[Waiter] = field(default_factory=deque)
    waits_for: str | None = None
    failure: Failure | None = None
    failures: Counter[str] = field(default_factory=Counter)
    strikes: int = 0
    not_before: float = 0.0
    turn_ended: float = 0.0
    starts: int = 0
    start_seconds: float | None = None
    last_launch: Launch | None = None
    since_down: float = field(default_factory=time.time)

    @property
    def first(self) -> Instance | None:
        """The instance that stands for it: the one that serves, else the one that comes, else the one that goes."""
        alive = [i for i in self.instances if i.phase is not None]
        return min(alive, key=lambda i: _ORDER.index(i.phase or Phase.STOPPING), default=None)

    @property
    def serving(self) -> Instance | None:
        """The instance that takes requests, the newest if there are two."""
        return next((i for i in reversed(self.instances) if i.is_ready), None)

    @property
    def coming(self) -> Instance | None:
        """The instance that loads as what is wanted now."""
        return next((i for i in self.instances if i.phase is Phase.LOADING and self.is_current(i)), None)

    @property
    def loading(self) -> Instance | None:
        """The instance that loads or warms up, the newest if there are two."""
        return next((i for i in reversed(self.instances) if i.phase is Phase.LOADING), None)

    @property
    def state(self) -> ServerState:
        """Where it is in its life."""
        first = self.first
        if first is not None:
            return first.state
        return ServerState.FAILED if self.failure is not None else ServerState.STOPPED

    @property
    def is_ready(self) -> bool:
        """Whether requests can go to it."""
        return self.serving is not None

    @property
    def is_down(self) -> bool:
        """Whether there is no process, and no command brings one."""
        return not self.instances and self.operation is None

    @property
    def is_resting(self) -> bool:
        """Whether it failed so lately that a request should not try again; an operator may."""
        return self.rest_seconds > 0

    @property
    def rest_seconds(self) -> float:
        """How long it still rests."""
        return max(0.0, self.not_before - time.monotonic())

    @property
    def child(self) -> Child | None:
        """The process or container of the instance that stands for it."""
        return self.first.child if self.first else None

    @property
    def launch(self) -> Launch | None:
        """How that instance runs."""
        return self.first.goal.launch if self.first else None

    @property
    def since(self) -> float:
        """When it came into its state, Unix seconds."""
        return self.first.since_unix if self.first else self.since_down

    @property
    def running(self) -> int:
        """Requests that run on it."""
        return sum(len(i.leases) for i in self.instances)

    @property
    def asked_since(self) -> float:
        """When came what has it started now: a command, or the first request since it last took any."""
        since = time.monotonic()
        if self.operation is not None and not self.operation.leaving:
            since = self.operation.since
        if self.waiting and self.serving is None:
            since = min(since, max(self.waiting[0].since, self.turn_ended))
        return since

    def is_current(self, instance: Instance) -> bool:
        """Whether an instance runs as what is wanted now."""
        return any(instance.version == goal.version(self.generation) for goal in self.goals)

    def forgive(self) -> None:
        """Forget earlier failures: an operator has spoken."""
        self.strikes, self.not_before = 0, 0.0

    def refuse(self, error: SlipstreamError) -> Failure:
        """Note that this server could not even be planned."""
        self.failure = Failure(reason=_REFUSED.get(error.code, "plan"), message=error.message)
        return self.failure

    def note_ready(self, instance: Instance) -> None:
        """An instance has become ready."""
        self.failure, self.start_seconds = None, instance.start_seconds or self.start_seconds
        launch = instance.goal.launch
        instance.changes = () if self.last_launch is None else changes(self.last_launch, launch)
        self.last_launch = launch

    def is_failing(self, instance: Instance) -> bool:
        """Whether an instance has failed as what is wanted now."""
        return instance.failure is not None and self.is_current(instance)

    def note_failure(self, instance: Instance) -> None:
        """An instance has failed, which is a strike: the second in a row has to rest, and longer each time."""
        assert instance.failure is not None
        self.failure = instance.failure
        self.failures[instance.failure.reason] += 1
        now = time.monotonic()
        if instance.was_ready:
            self.strikes = 1 if now - instance.since_ready >= _STEADY_SECONDS else self.strikes + 1
            rest = backoff_seconds(self.strikes - 1) if self.strikes > 1 else 0.0
        else:
            self.strikes += 1
            rest = backoff_seconds(self.strikes)
        self.not_before = now + rest

    def note_end(self, instance: Instance) -> None:
        """Nothing is left of an instance."""
        self.instances.remove(instance)
        if not self.instances:
            self.since_down = time.time()
