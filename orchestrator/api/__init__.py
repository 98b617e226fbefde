"""Control plane: one thin router a resource."""

from orchestrator.api.application import build_api
from orchestrator.api.context import Context
from orchestrator.api.guard import Guard
from orchestrator.api.trail import Trail

__all__ = ["Context", "Guard", "Trail", "build_api"]
