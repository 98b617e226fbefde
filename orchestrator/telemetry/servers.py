"""State of the servers."""

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from orchestrator.telemetry.snapshot import ServerSnapshot


class ServerCollector(Collector):
    """Where each server is in its life.

    ```
    slipstream_server_up{model="smollm2-135m"} 1.0
    slipstream_server_state{model="smollm2-135m",state="ready"} 1.0
    slipstream_server_restarts_total{model="smollm2-135m"} 0.0
    slipstream_server_start_seconds{model="smollm2-135m"} 0.61
    ```
    """

    def __init__(self, servers: Sequence[ServerSnapshot]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        """Gauges and the restart counter, one series a model."""
        up = GaugeMetricFamily("slipstream_server_up", "Whether the server is ready.", labels=("model",))
        state = GaugeMetricFamily(
            "slipstream_server_state", "1 for the state the server is in.", labels=("model", "state")
        )
        restarts = CounterMetricFamily(
            "slipstream_server_restarts", "Starts after the first since the orchestrator started.", labels=("model",)
        )
        start = GaugeMetricFamily(
            "slipstream_server_start_seconds", "How long the last start took, seconds.", labels=("model",)
        )
        for server in self._servers:
            up.add_metric([server.model], float(server.is_ready))
            state.add_metric([server.model, server.state], 1.0)
            restarts.add_metric([server.model], float(max(0, server.starts - 1)))
            if server.start_seconds is not None:
                start.add_metric([server.model], server.start_seconds)
        yield from (up, state, restarts, start)


class BuildCollector(Collector):
    """Versions: `slipstream_build_info{llama_server="0.6.0-dev (build 11434, …)",version="0.1.0"} 1.0`."""

    def __init__(self, version: str, llama_server: str) -> None:
        self._info = {"version": version, "llama_server": llama_server}

    def collect(self) -> Iterator[Metric]:
        """One info family."""
        yield InfoMetricFamily("slipstream_build", "Versions of Slipstream and its llama-server.", value=self._info)
