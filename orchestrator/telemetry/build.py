"""What runs here."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily
from prometheus_client.registry import Collector


class BuildCollector(Collector):
    """Versions: `slipstream_build_info{llama_server="0.6.0-dev (build 11434, …)",version="0.1.0"} 1.0`."""

    def __init__(self, version: str, llama_server: str) -> None:
        self._info = {"version": version, "llama_server": llama_server}

    def collect(self) -> Iterator[Metric]:
        """One info family."""
        yield InfoMetricFamily("slipstream_build", "Versions of Slipstream and its llama-server.", value=self._info)
