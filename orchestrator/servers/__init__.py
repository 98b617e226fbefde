"""Lifecycle of llama-servers."""

from orchestrator.servers.binary import find_binary, read_flags
from orchestrator.servers.cataloguing import Cataloguing
from orchestrator.servers.drivers.process import child_environment
from orchestrator.servers.files import ModelFiles
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.hosts import Host
from orchestrator.servers.instance import Instance, Runtime
from orchestrator.servers.lease import Lease
from orchestrator.servers.manager import Manager
from orchestrator.servers.memory import Observed
from orchestrator.servers.opening import Opening
from orchestrator.servers.readiness import own_headers
from orchestrator.servers.scrape import snapshots
from orchestrator.servers.server import Server
from orchestrator.servers.supply import Supply
from orchestrator.servers.telling import shutting_down
from orchestrator.servers.wanted import Wanted

__all__ = [
    "Cataloguing",
    "FlagTable",
    "Host",
    "Instance",
    "Lease",
    "Manager",
    "ModelFiles",
    "Observed",
    "Opening",
    "Runtime",
    "Server",
    "Supply",
    "Wanted",
    "child_environment",
    "find_binary",
    "own_headers",
    "read_flags",
    "shutting_down",
    "snapshots",
]
