"""Lifecycle of llama-server processes."""

from orchestrator.servers.binary import find_binary, read_flags
from orchestrator.servers.cataloguing import Cataloguing
from orchestrator.servers.files import ModelFiles
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.manager import Manager
from orchestrator.servers.process import child_environment
from orchestrator.servers.scrape import snapshots
from orchestrator.servers.server import Runtime, Server
from orchestrator.servers.supply import Supply
from orchestrator.servers.wanted import Wanted

__all__ = [
    "Cataloguing",
    "FlagTable",
    "Manager",
    "ModelFiles",
    "Runtime",
    "Server",
    "Supply",
    "Wanted",
    "child_environment",
    "find_binary",
    "read_flags",
    "snapshots",
]
