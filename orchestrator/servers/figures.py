"""State of servers as the metrics page shows it: copies, made on the event loop from what is in memory."""

from collections import Counter

from orchestrator.servers.hosts import Host
from orchestrator.servers.manager import Manager
from orchestrator.servers.server import Server
from orchestrator.telemetry.devices import HostSnapshot
from orchestrator.telemetry.servers import ServerStatus


def server_statuses(manager: Manager) -> list[ServerStatus]:
    """Every server of the catalogue, and those that still run without a model file."""
    return [_status(server) for server in manager.servers()]


def host_snapshots(manager: Manager) -> list[HostSnapshot]:
    """Every host, with what is set aside there, for servers that go too."""
    reserved: dict[str, Counter[str]] = {name: Counter() for name in manager.scheduler.hosts}
    for server in manager.scheduler.servers.values():
        for instance in server.instances:
            if instance.phase is not None:
                reserved[instance.goal.host.name].update(instance.needs)
    return [_host(host, reserved[name]) for name, host in manager.scheduler.hosts.items()]


def _status(server: Server) -> ServerStatus:
    first = server.first
    return ServerStatus(
        model=server.model,
        state=server.state,
        is_ready=server.is_ready,
        starts=server.starts,
        start_seconds=server.start_seconds,
        failures=dict(server.failures),
        waiting=len(server.waiting),
        host=None if first is None else first.goal.host.name,
        spec_type="none" if first is None else first.goal.launch.spec_type,
    )


def _host(host: Host, reserved: Counter[str]) -> HostSnapshot:
    return HostSnapshot(
        name=host.name,
        accelerators=len(host.accelerators),
        expected_accelerators=host.expected_accelerators,
        budget_bytes=dict(host.budgets),
        reserved_bytes=dict(reserved),
    )
