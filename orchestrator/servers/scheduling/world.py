"""What the scheduler decides upon: a picture of all state at one moment, and what is to be done about it. Pure data.

Times are seconds of one monotonic clock, sizes are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Needs = Mapping[str, int]
"""Bytes by device of one host; a device is named as llama-server names it (`CUDA0`, `ROCm1`), `host` is its RAM."""


class Phase(StrEnum):
    """Where an instance is in its life. One that has ended is in no world."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass(frozen=True)
class Option:
    """One way to run a model: where, as which launch, and what it then holds."""

    host: str
    launch: str
    needs: Needs


@dataclass(frozen=True)
class Instance:
    """A llama-server that holds memory: from the decision to start it until its memory is seen to be back.

    `since` is when it came into its phase, `idle_since` when its last request ended (or when it became ready).
    `load_seconds` is what it cost to bring up, measured or guessed. `drain_until` counts in DRAINING alone.
    """

    id: int
    model: str
    host: str
    launch: str
    needs: Needs
    phase: Phase
    since: float
    running: int = 0
    idle_since: float = 0.0
    load_seconds: float = 0.0
    drain_until: float = 0.0


@dataclass(frozen=True)
class Model:
    """What is wanted of one model.

    `options` are the launches it may run as, best first; an instance with another launch is an old version, which
    serves until a new one is ready. No options: it cannot be started, and what runs goes on.
    `asked`: an operator's command waits for it; this goes before requests, waits for nobody's turn and is not held
    by `not_before`. `leaving`: an operator wants it down; nothing of it starts until that is over.
    `replaces`: models that this one takes the place of: they go first where memory is short, else when it is ready.
    `turn_ended`: when a server of it last ceased to take requests, drained, stopped or dead. It waits in order from
    then, however old its oldest request is: else a long queue would win back the memory that its server just gave up.
    """

    name: str
    options: tuple[Option, ...] = ()
    wanted: bool = False
    waiting: int = 0
    waiting_since: float = 0.0
    turn_ended: float = 0.0
    asked: bool = False
    leaving: bool = False
    replaces: tuple[str, ...] = ()
    pinned: bool = False
    priority: int = 0
    group: str | None = None
    idle_seconds: float | None = None
    not_before: float = 0.0


@dataclass(frozen=True)
class Rules:
    """Constants of the policy."""

    drain_seconds: float = 60.0
    # A busy server may serve this many times as long as it took to load before it must go for those who wait.
    turn_loads: float = 3.0
    turn_least_seconds: float = 1.0
    turn_most_seconds: float = 60.0
    # One that has just become idle is kept for its next request for this share of its load time, within its turn.
    linger_loads: float = 0.1
    linger_most_seconds: float = 3.0
    # One level of priority counts as having waited this much longer: no level starves another for ever.
    priority_seconds: float = 30.0


@dataclass(frozen=True)
class World:
    """Everything at one moment. `budgets` by host; a device without a budget has no bound."""

    now: float
    models: tuple[Model, ...] = ()
    instances: tuple[Instance, ...] = ()
    budgets: Mapping[str, Needs] = field(default_factory=dict)
    rules: Rules = Rules()


@dataclass(frozen=True)
class Start:
    """Bring up a model as one of its options, whose memory is free now."""

    model: str
    option: Option
    why: str


@dataclass(frozen=True)
class Drain:
    """Give an instance no more requests; what runs on it may end until `until`."""

    instance: int
    until: float
    why: str


@dataclass(frozen=True)
class Stop:
    """End an instance now: nothing runs on it, or its time is over."""

    instance: int
    why: str


Action = Start | Drain | Stop


@dataclass(frozen=True)
class Decision:
    """What to do now; why models wait; which can never be served as things are, and why; when to decide again."""

    actions: tuple[Action, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    wake_at: float | None = None
