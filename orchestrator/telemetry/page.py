"""The metrics page: collectors over one set of snapshots, rendered by the client library."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from orchestrator.telemetry.relay import RelayCollector
from orchestrator.telemetry.requests import Requests
from orchestrator.telemetry.servers import BuildCollector, ServerCollector
from orchestrator.telemetry.slots import SlotCollector
from orchestrator.telemetry.snapshot import ServerSnapshot

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def render(servers: Sequence[ServerSnapshot], requests: Requests, version: str, llama_server: str) -> bytes:
    """The page in Prometheus' text format."""
    requests.keep_only({server.model for server in servers})
    registry = CollectorRegistry(auto_describe=False)
    for collector in (
        BuildCollector(version, llama_server),
        ServerCollector(servers),
        SlotCollector(servers),
        requests,
        RelayCollector(servers),
    ):
        registry.register(collector)
    return generate_latest(registry)
