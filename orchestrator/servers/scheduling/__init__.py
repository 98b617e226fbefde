"""The scheduler's decisions: pure, over a picture of the world."""

from orchestrator.servers.scheduling.plan import plan
from orchestrator.servers.scheduling.world import (
    Decision,
    Drain,
    Instance,
    Model,
    Needs,
    Option,
    Phase,
    Rules,
    Start,
    Stop,
    World,
)

__all__ = [
    "Decision",
    "Drain",
    "Instance",
    "Model",
    "Needs",
    "Option",
    "Phase",
    "Rules",
    "Start",
    "Stop",
    "World",
    "plan",
]
