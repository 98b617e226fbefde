"""An Ollama store on this machine: read there, its blobs used in place, never written to."""

from orchestrator.store.ollama.name import OllamaName
from orchestrator.store.ollama.notes import OllamaSettings, settings_of
from orchestrator.store.ollama.runner import RunnerVersion, runner_version
from orchestrator.store.ollama.store import OllamaModel, OllamaStore, list_models, read_model

__all__ = [
    "OllamaModel",
    "OllamaName",
    "OllamaSettings",
    "OllamaStore",
    "RunnerVersion",
    "list_models",
    "read_model",
    "runner_version",
    "settings_of",
]
