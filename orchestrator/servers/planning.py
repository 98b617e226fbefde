"""What a change would do, told from state alone: the answers of `?dry_run=true`."""

from collections.abc import Iterable

from orchestrator.schemas import Action, Plan
from orchestrator.servers.hosts import Goal
from orchestrator.servers.scheduler import Scheduler
from orchestrator.servers.scheduling import Start
from orchestrator.servers.server import Server


def plan_down(server: Server) -> Plan:
    """End one server."""
    down = Action(do="stop", model=server.model, why="asked to stop")
    return Plan(actions=(keep(server, "not running") if server.is_down else down,))


def plan_start(
    scheduler: Scheduler,
    server: Server,
    goals: tuple[Goal, ...],
    stop: Iterable[Server] = (),
    *,
    is_restart: bool = False,
) -> Plan:
    """Bring `server` to `goals`, in place of others; one that runs so already is kept, unless this is a restart.

    Where memory allows the new one starts before the old ones go.
    """
    stop = tuple(s for s in stop if not s.is_down)
    replaced = {s.model: f"makes room for {server.model}" for s in stop}
    if is_same(server, goals) and not is_restart:
        gone = tuple(Action(do="stop", model=model, why=why) for model, why in replaced.items())
        return Plan(actions=(*gone, keep(server, "runs with exactly these flags already")))
    decision = scheduler.preview(server, goals, fresh=is_restart, replaces=stop)
    old = "asked to restart" if is_restart else "its flags change"
    own = {server.model: old} if server.instances else {}
    starts = [a for a in decision.actions if isinstance(a, Start) and a.model == server.model]
    goal = next((g for s in starts for g in goals if g.host.name == s.option.host), goals[0])
    start = Action(
        do="start",
        model=server.model,
        why=old if own else "not running",
        argv=goal.launch.shown_argv,
    )
    leaves = {scheduler.model_of(a.instance): a.why for a in decision.actions if not isinstance(a, Start)}
    gone = tuple(Action(do="stop", model=model, why=why) for model, why in (replaced | leaves | own).items())
    return Plan(actions=(start, *gone) if starts else (*gone, start))


def keep(server: Server, why: str) -> Action:
    """Leave a server as it is."""
    return Action(do="keep", model=server.model, why=why)


def is_same(server: Server, goals: tuple[Goal, ...]) -> bool:
    """Whether the server already runs, or comes, as what is asked for."""
    instance = server.serving or server.coming
    return instance is not None and server.is_current(instance) and any(g.launch == instance.goal.launch for g in goals)


def is_same_goal(server: Server, goals: tuple[Goal, ...]) -> bool:
    """Whether a command that is under way leads to the same."""
    return [g.launch for g in server.goals] == [g.launch for g in goals]
