"""Long work, and what it brings."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

# Files of `path` and `ollama` are used where they are.
_NETWORK_SOURCES = ("hf", "url", "pypi")


class JobCollector(Collector):
    """Jobs by kind (`pull`, `graft`, `verify`), and bytes downloaded by kind of source (`hf`, `url`, `pypi`).

    ```
    slipstream_jobs{kind="pull",state="running"} 1.0
    slipstream_jobs_ended_total{kind="pull",outcome="succeeded"} 4.0
    slipstream_download_bytes_total{source="hf"} 9.831424e+07
    ```
    """

    def __init__(
        self,
        live: Mapping[tuple[str, str], int],
        ended: Mapping[tuple[str, str], int],
        downloaded_bytes: Mapping[str, int],
    ) -> None:
        """`live` by kind and state, `ended` by kind and outcome, `downloaded_bytes` by kind of source."""
        self._live = dict(live)
        self._ended = dict(ended)
        self._downloaded_bytes = dict(downloaded_bytes)

    def collect(self) -> Iterator[Metric]:
        """A gauge and two counters."""
        live = GaugeMetricFamily("slipstream_jobs", "Jobs that wait for their turn or run.", labels=("kind", "state"))
        for labels, count in self._live.items():
            live.add_metric(labels, count)
        ended = CounterMetricFamily(
            "slipstream_jobs_ended", "Jobs ended since the orchestrator started.", labels=("kind", "outcome")
        )
        for labels, count in self._ended.items():
            ended.add_metric(labels, count)
        downloaded = CounterMetricFamily(
            "slipstream_download_bytes",
            "Bytes of files that came over the network; what was there already does not count.",
            labels=("source",),
        )
        for source, size in {**dict.fromkeys(_NETWORK_SOURCES, 0), **self._downloaded_bytes}.items():
            downloaded.add_metric([source], size)
        yield from (live, ended, downloaded)
