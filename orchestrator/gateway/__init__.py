"""Data plane: `/v1/*`, and llama-server's own spellings of the same routes."""

from orchestrator.gateway.app import Gateway
from orchestrator.gateway.front import Front
from orchestrator.gateway.routes import DATA_PATHS, is_data

__all__ = ["DATA_PATHS", "Front", "Gateway", "is_data"]
