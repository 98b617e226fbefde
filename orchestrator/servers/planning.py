"""What a change would do, told from state alone: the answers of `?dry_run=true`."""

from collections.abc import Iterable

from orchestrator.schemas import Action, Plan
from orchestrator.servers.launch import Launch
from orchestrator.servers.server import Server


def plan_stop(servers: Iterable[Server], why: str) -> tuple[Action, ...]:
    """Stop those that run."""
    return tuple(Action(do="stop", model=s.model, why=why) for s in servers if not s.is_down)


def plan_down(server: Server) -> Plan:
    """End one server."""
    return Plan(actions=plan_stop([server], "asked to stop") or (keep(server, "not running"),))


def plan_start(server: Server, launch: Launch, stop: Iterable[Server] = (), *, is_restart: bool = False) -> Plan:
    """Stop others, then bring `server` to `launch`; one that runs so already is kept, unless this is a restart."""
    others = plan_stop(stop, f"makes room for {server.model}")
    if is_same(server, launch) and not is_restart:
        return Plan(actions=(*others, keep(server, "runs with exactly these flags already")))
    change = "asked to restart" if is_restart else "its flags change"
    why = "not running" if server.is_down else change
    start = Action(do="start", model=server.model, why=why, argv=launch.shown_argv)
    return Plan(actions=(*others, *plan_stop([server], change), start))


def keep(server: Server, why: str) -> Action:
    """Leave a server as it is."""
    return Action(do="keep", model=server.model, why=why)


def is_same(server: Server, launch: Launch) -> bool:
    """Whether the server already is, or is becoming, what is asked for."""
    return server.goal == launch if server.busy else server.is_ready and server.launch == launch
