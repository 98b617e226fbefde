"""What has been decided so far, in one decision."""

import math
from collections.abc import Iterable

from orchestrator.servers.scheduling.room import Room
from orchestrator.servers.scheduling.world import (
    Action,
    Decision,
    Drain,
    Instance,
    Model,
    Option,
    Phase,
    Start,
    Stop,
    World,
)

ALIVE = (Phase.LOADING, Phase.READY)


class Board:
    """The world, indexed, and the notes of one decision on it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = world.now
        self.room = Room(world)
        self.models = {model.name: model for model in world.models}
        self.instances: dict[str, list[Instance]] = {}
        # Instances that go, and those that an earlier demand counts upon: nobody else may choose them.
        self.going: set[int] = set()
        self.taken: set[int] = set()
        # Who starts, or waits to, by group and by host: later ones stand behind them.
        self.groups: dict[str, str] = {}
        self.queues: dict[str, str] = {}
        self.waits: dict[str, str] = {}
        self.refusals: dict[str, str] = {}
        # The commands to replace others, in order, without those whose own model an earlier one replaces.
        self.swaps: list[Model] = []
        # Who is being replaced by whom and does not start meanwhile, and all whom these name: no pin keeps them.
        self.held: dict[str, Model] = {}
        self.replaced: set[str] = set()
        self._actions: list[Action] = []
        self._wake_at = math.inf
        for instance in world.instances:
            self.instances.setdefault(instance.model, []).append(instance)
            if instance.phase not in ALIVE:
                self._goes(instance)
        self._find_swaps()

    def model(self, name: str) -> Model:
        """A model; one that the world does not name wants nothing."""
        found = self.models.get(name)
        return Model(name) if found is None else found

    def is_current(self, instance: Instance) -> bool:
        """Whether an instance runs as what its model may run as now."""
        options = self.model(instance.model).options
        return not options or any(option.launch == instance.launch for option in options)

    def alive(self, model: str) -> list[Instance]:
        """Its instances that load or serve, and are to go on."""
        found = self.instances.get(model, ())
        return [i for i in found if i.phase in ALIVE and i.id not in self.going]

    def current(self, model: str) -> Instance | None:
        """The one that serves, or will, as what is wanted now."""
        return next((i for i in self.alive(model) if self.is_current(i)), None)

    def order(self, model: Model) -> tuple[bool, float, str]:
        """Who is served first has the least."""
        credit = model.priority * self.world.rules.priority_seconds
        return (not model.asked, max(model.waiting_since, model.turn_ended) - credit, model.name)

    def send_off(self, instance: Instance, why: str) -> None:
        """Have it go, with time for what runs on it."""
        if instance.phase is Phase.LOADING or not instance.running:
            self.stop(instance, why)
            return
        until = self.now + self.world.rules.drain_seconds
        self._actions.append(Drain(instance.id, until, why))
        self.wake(until)
        self._goes(instance)

    def stop(self, instance: Instance, why: str) -> None:
        """End it now."""
        self._actions.append(Stop(instance.id, why))
        self._goes(instance)

    def start(self, model: Model, option: Option, why: str) -> None:
        """Bring it up."""
        self._actions.append(Start(model.name, option, why))
        self.room.take(option)
        self._stands(model, option)

    def claim(self, model: Model, option: Option, counts_upon: Iterable[Instance] = ()) -> None:
        """Have it wait for its memory, part of which these hold for now."""
        for instance in counts_upon:
            self.taken.add(instance.id)
            self.room.release(instance)
        self.room.claim(option)
        self._stands(model, option)

    def wake(self, at: float) -> None:
        """Decide again then, if not before."""
        if self.now < at < self._wake_at:
            self._wake_at = at

    def decision(self) -> Decision:
        """All of it."""
        wake_at = None if self._wake_at == math.inf else self._wake_at
        return Decision(tuple(self._actions), self.waits, self.refusals, wake_at)

    def _find_swaps(self) -> None:
        for model in sorted((m for m in self.world.models if m.asked and m.replaces and not m.leaving), key=self.order):
            if model.name in self.held:
                continue
            self.swaps.append(model)
            for name in model.replaces:
                if name == model.name:
                    continue
                self.replaced.add(name)
                other = self.model(name)
                if not other.asked or self.order(model) < self.order(other):
                    self.held.setdefault(name, model)

    def _goes(self, instance: Instance) -> None:
        # The memory of one whose drain ends has been counted as coming back before.
        if instance.id not in self.going:
            self.going.add(instance.id)
            self.room.release(instance)

    def _stands(self, model: Model, option: Option) -> None:
        if model.group is not None:
            self.groups.setdefault(model.group, model.name)
        self.queues[option.host] = model.name
