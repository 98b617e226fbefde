"""What tests share: real llama-server processes, a client for them, toys made once."""

from tests.support.client import Completion, LlamaClient, Samples
from tests.support.polling import eventually
from tests.support.server import LlamaServer, running_server
from tests.support.toybox import Toy, ToyBox

__all__ = [
    "Completion",
    "LlamaClient",
    "LlamaServer",
    "Samples",
    "Toy",
    "ToyBox",
    "eventually",
    "running_server",
]
