"""Lifecycle of llama-servers."""

from orchestrator.servers.accelerators import Missing
from orchestrator.servers.bench import Benches
from orchestrator.servers.binary import find_binary, read_flags
from orchestrator.servers.cataloguing import Cataloguing
from orchestrator.servers.drivers.process import child_environment
from orchestrator.servers.figures import host_snapshots, server_statuses
from orchestrator.servers.files import ModelFiles
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.hosts import Host
from orchestrator.servers.instance import Instance, Runtime
from orchestrator.servers.lease import Lease
from orchestrator.servers.manager import Manager
from orchestrator.servers.memory import Observed
from orchestrator.servers.opening import Opening
from orchestrator.servers.readiness import own_headers
from orchestrator.servers.scrape import Scraper
from orchestrator.servers.server import Server
from orchestrator.servers.speculation import speculation
from orchestrator.servers.supply import Supply
from orchestrator.servers.telling import shutting_down
from orchestrator.servers.wanted import Wanted

__all__ = [
    "Benches",
    "Cataloguing",
    "FlagTable",
    "Host",
    "Instance",
    "Lease",
    "Manager",
    "Missing",
    "ModelFiles",
    "Observed",
    "Opening",
    "Runtime",
    "Scraper",
    "Server",
    "Supply",
    "Wanted",
    "child_environment",
    "find_binary",
    "host_snapshots",
    "own_headers",
    "read_flags",
    "server_statuses",
    "shutting_down",
    "speculation",
]
