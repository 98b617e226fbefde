"""A Hugging Face-compatible hub on loopback, with a content host of another origin and faults to order."""

from tests.support.hub.faults import Fault, Kind
from tests.support.hub.hub import Hub, running_hub
from tests.support.hub.repositories import HubFile
from tests.support.hub.server import Request

__all__ = ["Fault", "Hub", "HubFile", "Kind", "Request", "running_hub"]
