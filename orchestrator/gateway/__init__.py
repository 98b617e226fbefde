"""Data plane: `/v1/*`."""

from orchestrator.gateway.app import Gateway

__all__ = ["Gateway"]
