"""From the records of servers to the picture that is decided upon."""

import time
from collections.abc import Callable, Mapping

from orchestrator.schemas import Desired, Keep, ModelSpec
from orchestrator.servers import scheduling
from orchestrator.servers.hosts import Goal, Host
from orchestrator.servers.instance import Instance, Runtime
from orchestrator.servers.scheduling import Model, Option, Rules, World
from orchestrator.servers.server import Server
from orchestrator.servers.wanted import Wanted

_DEFAULT_KEEP = Keep()
# What a load is taken to cost before one was seen: bytes of a disk in a second.
_GUESSED_BYTES_PER_SECOND = 1e9


class Picture:
    """Makes worlds. `spec` gives the model file of now."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        wanted: Wanted,
        runtime: Runtime,
        spec: Callable[[str], ModelSpec | None],
    ) -> None:
        self._hosts = hosts
        self._wanted = wanted
        self._runtime = runtime
        self._spec = spec

    def now(self, servers: Mapping[str, Server]) -> World:
        """Everything as it is."""
        return self._world(servers, tuple(self._model(s) for s in servers.values() if self._counts(s)))

    def with_asked(
        self,
        servers: Mapping[str, Server],
        server: Server,
        goals: tuple[Goal, ...],
        fresh: bool,
        replaces: tuple[Server, ...],
    ) -> World:
        """Everything as it would be after a command for `server`."""
        others = tuple(self._model(s) for s in servers.values() if s is not server and self._counts(s))
        asked = Model(
            name=server.model,
            options=_options(goals, server.generation + fresh),
            asked=True,
            replaces=tuple(other.model for other in replaces),
            group=self._keep(server).group,
        )
        return self._world(servers, (asked, *others))

    def idle_seconds(self, server: Server) -> float | None:
        """How long it may idle; None when it stays."""
        keep = self._keep(server)
        if keep.pinned or self._wanted[server.model].desired is Desired.RUNNING:
            return None
        return keep.idle_seconds or self._runtime.idle_seconds

    def _world(self, servers: Mapping[str, Server], models: tuple[Model, ...]) -> World:
        instances = tuple(_pictured(i) for s in servers.values() for i in s.instances if i.phase is not None)
        budgets = {name: host.budgets for name, host in self._hosts.items()}
        rules = Rules(drain_seconds=self._runtime.drain_timeout_seconds)
        return World(time.monotonic(), models, instances, budgets, rules)

    def _counts(self, server: Server) -> bool:
        """Whether there is anything to decide about it. Most of a long catalogue is at rest."""
        return bool(server.instances or server.waiting or server.operation or self._is_wanted(server))

    def _is_wanted(self, server: Server) -> bool:
        return self._wanted[server.model].desired is Desired.RUNNING or self._keep(server).preload

    def _model(self, server: Server) -> Model:
        keep, operation = self._keep(server), server.operation
        leaving = operation is not None and operation.leaving
        return Model(
            name=server.model,
            options=_options(server.goals, server.generation),
            wanted=self._is_wanted(server) and self._spec(server.model) is not None,
            waiting=len(server.waiting),
            waiting_since=server.waiting[0].since if server.waiting else 0.0,
            turn_ended=server.turn_ended,
            # One that has just failed is not tried again: the operation ends with it.
            asked=operation is not None and not leaving and not any(map(server.is_failing, server.instances)),
            leaving=leaving,
            replaces=() if operation is None else tuple(other.model for other in operation.replaces),
            pinned=keep.pinned,
            priority=keep.priority,
            group=keep.group,
            idle_seconds=self.idle_seconds(server),
            not_before=server.not_before,
        )

    def _keep(self, server: Server) -> Keep:
        spec = self._spec(server.model)
        return _DEFAULT_KEEP if spec is None else spec.keep


def _options(goals: tuple[Goal, ...], generation: int) -> tuple[Option, ...]:
    return tuple(Option(goal.host.name, goal.version(generation), goal.needs) for goal in goals)


def _pictured(instance: Instance) -> scheduling.Instance:
    assert instance.phase is not None
    load_seconds = instance.start_seconds if instance.start_seconds is not None else instance.goal.load_seconds
    if load_seconds is None:
        load_seconds = sum(instance.needs.values()) / _GUESSED_BYTES_PER_SECOND
    return scheduling.Instance(
        id=instance.number,
        model=instance.model,
        host=instance.goal.host.name,
        launch=instance.version,
        needs=instance.needs,
        phase=instance.phase,
        since=instance.since,
        running=len(instance.leases),
        idle_since=instance.idle_since,
        load_seconds=load_seconds,
        drain_until=instance.drain_until,
    )
