"""Control plane: one thin router a resource."""

from orchestrator.api.application import build_api
from orchestrator.api.context import Context
from orchestrator.api.guard import Guard

__all__ = ["Context", "Guard", "build_api"]
