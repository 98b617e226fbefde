"""The one owner of all state of servers: it looks at everything, asks `plan` what to do, and does it.

Every change pokes it; it then decides anew from state as it is, on the event loop, without a pause in between. So no
stale look at state ever gates a change.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count

from orchestrator.errors import SlipstreamError
from orchestrator.schemas import Limits, ModelSpec, ServerState
from orchestrator.servers.drivers.base import Found
from orchestrator.servers.events import Events
from orchestrator.servers.hosts import Goal, Host
from orchestrator.servers.instance import Instance, Runtime
from orchestrator.servers.lease import Lease
from orchestrator.servers.logs import LogBuffer
from orchestrator.servers.memory import Observed
from orchestrator.servers.operation import Operation
from orchestrator.servers.picture import Picture
from orchestrator.servers.scheduling import Decision, Drain, Phase, Start, Stop, plan
from orchestrator.servers.server import Server, Waiter
from orchestrator.servers.telling import no_room, not_running, queue_full, shutting_down, superseded, wait_timeout
from orchestrator.servers.wanted import Wanted
from orchestrator.telemetry.swaps import Swaps

_log = logging.getLogger(__name__)
_UNLIMITED = Limits()


class Scheduler:
    """Servers by model, on some hosts. `spec` gives the model file of now, None when there is none any more."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        wanted: Wanted,
        observed: Observed,
        runtime: Runtime,
        spec: Callable[[str], ModelSpec | None],
    ) -> None:
        self.hosts = hosts
        self.servers: dict[str, Server] = {}
        self.events = Events()
        self.swaps = Swaps()
        self.is_closing = False
        self._observed = observed
        self._runtime = runtime
        self._spec = spec
        self._picture = Picture(hosts, wanted, runtime, spec)
        self._numbers = count(1)
        self._waiting = 0
        self._is_poked = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._background: set[asyncio.Task[None]] = set()

    def server(self, model: str) -> Server:
        """The record of a model, made when it is first asked for."""
        if model not in self.servers:
            self.servers[model] = Server(model, LogBuffer(self._runtime.log_lines))
        return self.servers[model]

    async def lease(self, server: Server) -> Lease:
        """A hold on the server for one request, in the order they came. The caller may be cancelled freely."""
        if self.is_closing:
            raise shutting_down()
        if not server.waiting and (at_once := self._granted(server)) is not None:
            return at_once
        limits = self._limits(server.model)
        bound = self._runtime.max_waiting_requests if limits.waiting is None else limits.waiting
        if len(server.waiting) >= bound:
            raise queue_full(server, bound)
        waiter = Waiter(asyncio.get_running_loop().create_future(), time.monotonic())
        server.waiting.append(waiter)
        self._waiting += 1
        self.poke()
        longest = limits.wait_seconds or self._runtime.wait_timeout_seconds
        lease: Lease | None = None
        try:
            async with asyncio.timeout(longest):
                lease = await waiter.future
                return lease
        except TimeoutError:
            raise wait_timeout(server, longest) from None
        finally:
            self._leave(server, waiter, lease)

    def bring(
        self,
        server: Server,
        goals: tuple[Goal, ...],
        *,
        fresh: bool = False,
        replaces: tuple[Server, ...] = (),
        drain_seconds: float | None = None,
    ) -> Operation:
        """Have it run as one of `goals`; with `fresh` as a new process even if one runs so."""
        server.forgive()
        server.goals = goals
        server.generation += fresh
        gone = tuple(i for other in (server, *replaces) for i in other.instances if not server.is_current(i))
        return self._operate(Operation(server, replaces=replaces, drain_seconds=drain_seconds, must_go=gone))

    def take_down(self, server: Server, drain_seconds: float | None = None) -> Operation:
        """Have it end. Requests that wait for it hear so."""
        server.forgive()
        server.failure = None
        operation = self._operate(Operation(server, leaving=True, drain_seconds=drain_seconds))
        self.fail_waiting(server, not_running(server))
        return operation

    def release(self, operation: Operation) -> None:
        """What an operation was about is written down."""
        operation.release()
        self.poke()

    def adopt(self, server: Server, goal: Goal, found: Found) -> None:
        """Take over what runs from before a restart of ours."""
        server.goals = (goal,)
        self._start(server, goal, "it ran before the orchestrator's restart", found)

    def fail_waiting(self, server: Server, error: SlipstreamError) -> None:
        """End the wait of every request for it."""
        for waiter in server.waiting:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def begin_close(self) -> None:
        """Start nothing more, and end what loads; answers that run go on."""
        self.is_closing = True
        self.events.close()
        for server in self.servers.values():
            server.log.close()
            self.fail_waiting(server, shutting_down())
            if server.operation is not None and not server.operation.leaving:
                server.operation.fail(shutting_down())
        for instance in self._instances():
            if instance.phase is Phase.LOADING:
                instance.stop("the orchestrator is shutting down", shutting_down())

    async def close(self) -> None:
        """End every server; nothing starts after this."""
        self.begin_close()
        if self._timer is not None:
            self._timer.cancel()
        lives = [instance.life for instance in self._instances() if instance.life is not None]
        for instance in self._instances():
            instance.stop("the orchestrator is shutting down", shutting_down())
        await asyncio.gather(*lives, *self._background)

    def kill(self) -> None:
        """End every process at once; `close` then has nothing to wait for."""
        for instance in self._instances():
            instance.kill()

    def keep_only(self, models: Collection[str]) -> None:
        """Forget what was measured of models that are gone; show these."""
        self.swaps.keep_only(models)
        self.events.keep_only(models)

    def poke(self) -> None:
        """Something has changed: decide anew, once for everything that changes in this turn of the loop."""
        if not self._is_poked:
            self._is_poked = True
            asyncio.get_running_loop().call_soon(self._step)

    def preview(self, server: Server, goals: tuple[Goal, ...], *, fresh: bool, replaces: Iterable[Server]) -> Decision:
        """What `bring` would begin with, as things are."""
        return plan(self._picture.with_asked(self.servers, server, goals, fresh, tuple(replaces)))

    def model_of(self, number: int) -> str:
        """The model of an instance."""
        return self._instance(number).model

    def _step(self) -> None:
        self._is_poked = False
        if self.is_closing:
            self._settle(Decision())
            return
        decision = plan(self._picture.now(self.servers))
        for action in decision.actions:
            self._do(action)
        self._settle(decision)
        self._wake_at(decision.wake_at)

    def _do(self, action: Start | Drain | Stop) -> None:
        if isinstance(action, Start):
            server = self.servers[action.model]
            goals = {(goal.host.name, goal.version(server.generation)): goal for goal in server.goals}
            self._start(server, goals[action.option.host, action.option.launch], action.why)
            return
        instance = self._instance(action.instance)
        if isinstance(action, Stop):
            instance.stop(action.why)
        else:
            instance.drain(self._drain_until(instance.model, action.until), action.why)

    def _drain_until(self, model: str, planned: float) -> float:
        """An operator's own deadline goes before the usual one."""
        for server in self.servers.values():
            operation = server.operation
            if operation is None or operation.drain_seconds is None:
                continue
            if server.model == model or any(other.model == model for other in operation.replaces):
                return time.monotonic() + operation.drain_seconds
        return planned

    def _start(self, server: Server, goal: Goal, why: str, found: Found | None = None) -> None:
        number = next(self._numbers)
        instance = Instance(number, goal, server.generation, server.log, self._runtime, why, self._changed)
        instance.asked_since = server.asked_since
        server.instances.append(instance)
        server.starts += found is None
        self._tell(instance)
        instance.begin(found)

    def _settle(self, decision: Decision) -> None:
        """Answer those who wait: with a lease, with a refusal, or with the reason why they go on waiting."""
        for server in self.servers.values():
            operation = server.operation
            refusal = decision.refusals.get(server.model)
            if operation is not None and operation.is_reached:
                operation.reach()
            elif operation is not None and refusal is not None and not operation.done.done():
                operation.fail(no_room(server, refusal))
                self.poke()
            while server.waiting and (lease := self._granted(server)) is not None:
                self._grant(server, lease)
            if server.waiting and server.operation is None and not server.instances:
                if refusal is not None:
                    self.fail_waiting(server, no_room(server, refusal))
                elif server.is_resting:
                    self.fail_waiting(server, not_running(server))
            server.waits_for = decision.waits.get(server.model)

    def _grant(self, server: Server, lease: Lease) -> None:
        while server.waiting:
            future = server.waiting.popleft().future
            self._waiting -= 1
            if not future.done():
                future.set_result(lease)
                return
        lease.release()

    def _granted(self, server: Server) -> Lease | None:
        instance = server.serving
        if instance is None or self.is_closing:
            return None
        limits = self._limits(server.model)
        if limits.concurrent is not None and len(instance.leases) >= limits.concurrent:
            return None
        lease = Lease(server, instance, self._released)
        instance.lease(lease)
        return lease

    def _released(self, lease: Lease) -> None:
        instance = lease.instance
        instance.release(lease)
        if lease.server.waiting or (not instance.leases and (self._waiting or instance.phase is Phase.DRAINING)):
            self.poke()
        elif not instance.leases and (idle := self._picture.idle_seconds(lease.server)) is not None:
            self._wake_at(time.monotonic() + idle)

    def _leave(self, server: Server, waiter: Waiter, lease: Lease | None) -> None:
        """A wait is over, however it ended. A lease that came when its request had just left is given back."""
        if waiter in server.waiting:
            server.waiting.remove(waiter)
            self._waiting -= 1
            self.poke()
        future = waiter.future
        if not future.done():
            future.cancel()
        elif lease is None and not future.cancelled() and future.exception() is None:
            future.result().release()

    def _operate(self, operation: Operation) -> Operation:
        server = operation.server
        if server.operation is not None:
            server.operation.fail(superseded(server))
        server.operation = operation
        if self.is_closing and not operation.leaving:
            operation.fail(shutting_down())
        self.poke()
        return operation

    def _changed(self, instance: Instance) -> None:
        """An instance came into another phase, has failed, or has ended."""
        server = self.servers[instance.model]
        if instance.told is ServerState.READY and not instance.is_ready:
            server.turn_ended = time.monotonic()
        if instance.failure is not None and not instance.is_noted:
            # Before it has ended: while it goes, nothing may be started as if it had not failed.
            instance.is_noted = True
            server.note_failure(instance)
        if instance.phase is None:
            server.note_end(instance)
            operation = server.operation
            if operation is not None and not operation.leaving and server.is_failing(instance):
                operation.fail(instance.error or not_running(server))
        elif instance.phase is Phase.READY:
            server.note_ready(instance)
            if instance.start_seconds is not None:
                self.swaps.load_seconds.observe(server.model, instance.since_ready - instance.asked_since)
            self._keep_observed(instance)
        self._tell(instance)
        self.poke()

    def _tell(self, instance: Instance) -> None:
        if instance.told == instance.state:
            return
        instance.told = instance.state
        told = self.events.note(instance)
        _log.info("%s (%d on %s): %s: %s", told.model, instance.number, told.host, told.state, told.why)

    def _keep_observed(self, instance: Instance) -> None:
        if not instance.measured:
            return
        key, host = instance.goal.launch.key, instance.goal.host.name
        work = self._observed.record(key, host, instance.measured, instance.start_seconds or 0.0)
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _wake_at(self, at: float | None) -> None:
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._woken)

    def _woken(self) -> None:
        # The loop's clock is coarse: a timer may fire a moment early, and has to be set again then.
        self._timer = None
        self.poke()

    def _instances(self) -> Iterator[Instance]:
        return (instance for server in self.servers.values() for instance in server.instances)

    def _instance(self, number: int) -> Instance:
        return next(instance for instance in self._instances() if instance.number == number)

    def _limits(self, model: str) -> Limits:
        spec = self._spec(model)
        return spec.limits if spec is not None else _UNLIMITED
