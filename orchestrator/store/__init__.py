"""Files on disk: where each source's files lie, how they get there, are proven, and go."""

from orchestrator.jobs import Kind
from orchestrator.store.candidates import select
from orchestrator.store.disk import require_cache
from orchestrator.store.gc import collect
from orchestrator.store.grafts import GraftPlace, graft_place, grafts_onto
from orchestrator.store.hub import list_repository
from orchestrator.store.layout import Layout, Place
from orchestrator.store.ollama import OllamaModel, list_models, read_model, runner_version, settings_of
from orchestrator.store.references import Reference, inventory
from orchestrator.store.remote_headers import remote_headers

# Work of this room that runs as jobs, in child processes.
KINDS = (
    Kind("pull", "orchestrator.store.pull"),
    Kind("graft", "orchestrator.store.pull"),
    Kind("verify", "orchestrator.store.checking"),
)

__all__ = [
    "KINDS",
    "GraftPlace",
    "Layout",
    "OllamaModel",
    "Place",
    "Reference",
    "collect",
    "graft_place",
    "grafts_onto",
    "inventory",
    "list_models",
    "list_repository",
    "read_model",
    "remote_headers",
    "require_cache",
    "runner_version",
    "select",
    "settings_of",
]
