"""A fleet that is not there: what the scheduler's owner does with decisions, on a clock that tests move."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from orchestrator.servers.scheduling import Decision, Drain, Instance, Model, Option, Phase, Rules, Start, World, plan
from orchestrator.servers.scheduling.quarantine import backoff_seconds
from tests.unit.servers.scheduling.invariants import check, check_world

RULES = Rules(drain_seconds=6, turn_loads=2, turn_least_seconds=1, turn_most_seconds=6, priority_seconds=5)
# A decision that leads to another one without end would hang the owner.
LONGEST_CHAIN = 60
ALIVE = (Phase.LOADING, Phase.READY)


@dataclass
class Command:
    """What an operator waits for."""

    leaving: bool = False
    replaces: tuple[str, ...] = ()
    must_go: tuple[int, ...] = ()


@dataclass
class Kept:
    """One model. `ways` are hosts and needs, best first; a change of `version` makes what runs an old one."""

    name: str
    ways: tuple[tuple[str, Mapping[str, int]], ...]
    load_seconds: float = 1.0
    priority: int = 0
    pinned: bool = False
    wanted: bool = False
    group: str | None = None
    idle_seconds: float | None = None
    concurrent: int = 2
    version: int = 0
    waiting: list[float] = field(default_factory=list)
    turn_ended: float = 0.0
    strikes: int = 0
    not_before: float = 0.0
    command: Command | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(Option(host, f"{self.name}.{host}.{self.version}", needs) for host, needs in self.ways)


class Fleet:
    """`on_lease` hears whose request got hold of a server, `on_refusal` whose requests were refused."""

    def __init__(self, budgets: Mapping[str, Mapping[str, int]], models: list[Kept]) -> None:
        self.budgets = budgets
        self.models = {model.name: model for model in models}
        self.instances: dict[int, Instance] = {}
        self.now = 100.0
        self.decision = Decision()
        self.on_lease: Callable[[str], None] = lambda name: None
        self.on_refusal: Callable[[str], None] = lambda name: None
        self._numbers = count(1)

    def world(self) -> World:
        models = tuple(self._model(kept) for kept in self.models.values())
        return World(self.now, models, tuple(self.instances.values()), self.budgets, RULES)

    def settle(self) -> None:
        """Decide and act until there is nothing more to do at this moment."""
        for _ in range(LONGEST_CHAIN):
            world = self.world()
            self.decision = plan(world)
            check(world, self.decision)
            for action in self.decision.actions:
                if isinstance(action, Start):
                    self._start(action)
                elif isinstance(action, Drain):
                    self._note_turn(action.instance)
                    self.change(action.instance, phase=Phase.DRAINING, since=self.now, drain_until=action.until)
                else:
                    self._note_turn(action.instance)
                    self.change(action.instance, phase=Phase.STOPPING, since=self.now, running=0)
            # No `or`: all three have to be done.
            if not any([bool(self.decision.actions), self._grant(), self._end_commands(), self._refuse()]):
                check_world(self.world(), self.decision)
                return
        raise AssertionError(f"no end of decisions: {self.decision}")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, waking when the decisions ask for it."""
        until = self.now + seconds
        for _ in range(LONGEST_CHAIN):
            wake_at = self.decision.wake_at
            self.now = until if wake_at is None else min(until, wake_at)
            self.settle()
            if self.now >= until:
                return
        raise AssertionError(f"it wakes without end: {self.decision}")

    def request(self, name: str) -> None:
        self.models[name].waiting.append(self.now)

    def load_ends(self, number: int, *, well: bool) -> None:
        """A load succeeds or fails."""
        if well:
            self.models[self.instances[number].model].strikes = 0
            self.change(number, phase=Phase.READY, since=self.now, idle_since=self.now)
        else:
            self.dies(number)

    def dies(self, number: int) -> None:
        """An instance is gone; a model whose server was not told to go rests."""
        self._note_turn(number)
        instance = self.instances.pop(number)
        kept = self.models[instance.model]
        if instance.phase in ALIVE:
            kept.strikes += 1
            kept.not_before = self.now + backoff_seconds(kept.strikes) / 10
            if kept.command is not None and not kept.command.leaving:
                kept.command = None

    def answer_ends(self, number: int) -> None:
        instance = self.instances[number]
        if instance.running:
            self.change(number, running=instance.running - 1, idle_since=self.now)

    def bring(self, name: str, replaces: tuple[str, ...] = (), *, renewed: bool = False) -> None:
        """An operator's start, restart or swap."""
        kept = self.models[name]
        kept.version += renewed
        kept.not_before, kept.strikes = 0.0, 0
        must_go = tuple(i.id for i in self.instances.values() if i.model in replaces and i.model != name)
        kept.command = Command(replaces=replaces, must_go=must_go)

    def take_down(self, name: str) -> None:
        self.models[name].command = Command(leaving=True)
        self.models[name].waiting.clear()

    def change(self, number: int, **fields: object) -> None:
        self.instances[number] = replace(self.instances[number], **fields)  # type: ignore[arg-type]

    def serving(self, name: str) -> Instance | None:
        ready = [i for i in self.instances.values() if i.model == name and i.phase is Phase.READY]
        return ready[-1] if ready else None

    def _model(self, kept: Kept) -> Model:
        command = kept.command
        return Model(
            name=kept.name,
            options=kept.options,
            wanted=kept.wanted,
            waiting=len(kept.waiting),
            waiting_since=kept.waiting[0] if kept.waiting else 0.0,
            turn_ended=kept.turn_ended,
            asked=command is not None and not command.leaving,
            leaving=command is not None and command.leaving,
            replaces=command.replaces if command else (),
            pinned=kept.pinned,
            priority=kept.priority,
            group=kept.group,
            idle_seconds=kept.idle_seconds,
            not_before=kept.not_before,
        )

    def _note_turn(self, number: int) -> None:
        if self.instances[number].phase is Phase.READY:
            self.models[self.instances[number].model].turn_ended = self.now

    def _start(self, action: Start) -> None:
        option, number = action.option, next(self._numbers)
        seconds = self.models[action.model].load_seconds
        self.instances[number] = Instance(
            number,
            action.model,
            option.host,
            option.launch,
            option.needs,
            Phase.LOADING,
            self.now,
            load_seconds=seconds,
        )

    def _grant(self) -> bool:
        granted = False
        for kept in self.models.values():
            while kept.waiting and (instance := self.serving(kept.name)) and instance.running < kept.concurrent:
                kept.waiting.pop(0)
                self.change(instance.id, running=instance.running + 1)
                self.on_lease(kept.name)
                granted = True
        return granted

    def _end_commands(self) -> bool:
        ended = [kept for kept in self.models.values() if kept.command and self._is_reached(kept, kept.command)]
        for kept in ended:
            kept.command = None
        return bool(ended)

    def _is_reached(self, kept: Kept, command: Command) -> bool:
        if command.leaving:
            return all(i.model != kept.name for i in self.instances.values())
        serving = self.serving(kept.name)
        is_up = serving is not None and (not kept.options or serving.launch in [o.launch for o in kept.options])
        return is_up and all(number not in self.instances for number in command.must_go)

    def _refuse(self) -> bool:
        refused = [self.models[name] for name in self.decision.refusals]
        for kept in refused:
            kept.waiting.clear()
            kept.command = None
            self.on_refusal(kept.name)
        return bool(refused)
