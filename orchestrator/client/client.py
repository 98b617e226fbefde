"""The client as a whole."""

from orchestrator.client.chat import ChatCalls
from orchestrator.client.jobs import JobCalls
from orchestrator.client.servers import ServerCalls
from orchestrator.client.supply import SupplyCalls


class Client(ServerCalls, SupplyCalls, JobCalls, ChatCalls):
    """Every call of one orchestrator. Every method raises SlipstreamError with code, message and hint.

    `url` defaults to SLIPSTREAM_URL, then http://127.0.0.1:8080. `key` defaults to SLIPSTREAM_KEY, then to the first
    line of the file that SLIPSTREAM_KEY_FILE names; without one no key is sent. May be used from several threads.
    """
