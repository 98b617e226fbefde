"""State of the servers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

# Why a process or container ends, or does not start (docs/lifecycle.md), codes of what drivers refuse among them.
FAILURE_REASONS = (
    *("bad_file", "conflict", "exited", "host_failed", "internal", "killed", "misconfigured", "model_incomplete"),
    *("no_accelerator", "no_draft", "no_kernel_image", "no_tensile_files", "not_ready", "out_of_memory", "port"),
    *("server_start_failed", "start_timeout", "unhealthy", "unknown_argument"),
)


@dataclass(frozen=True)
class ServerStatus:
    """One server at scrape time. `host` is that of its instance, None without one; `failures` by reason."""

    model: str
    state: str
    is_ready: bool
    starts: int = 0
    start_seconds: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    host: str | None = None
    spec_type: str = "none"


class ServerCollector(Collector):
    """Where each server is in its life, and how it has failed.

    ```
    slipstream_server_up{model="smollm2-135m"} 1.0
    slipstream_server_state{model="smollm2-135m",state="ready"} 1.0
    slipstream_server_info{host="local",model="smollm2-135m",spec_type="ngram-simple"} 1.0
    slipstream_server_restarts_total{model="smollm2-135m"} 0.0
    slipstream_server_failures_total{model="smollm2-135m",reason="out_of_memory"} 0.0
    slipstream_server_start_seconds{model="smollm2-135m"} 0.61
    ```
    """

    def __init__(self, servers: Sequence[ServerStatus]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        """Families of one series a model; failures have one a reason, once the model was started."""
        up = GaugeMetricFamily("slipstream_server_up", "Whether the server is ready.", labels=("model",))
        state = GaugeMetricFamily(
            "slipstream_server_state", "1 for the state the server is in.", labels=("model", "state")
        )
        info = InfoMetricFamily("slipstream_server", "1 while a server of the model is there.", labels=("model",))
        restarts = CounterMetricFamily(
            "slipstream_server_restarts", "Starts after the first since the orchestrator started.", labels=("model",)
        )
        start = GaugeMetricFamily(
            "slipstream_server_start_seconds", "How long the last start took, seconds.", labels=("model",)
        )
        for server in self._servers:
            up.add_metric([server.model], float(server.is_ready))
            state.add_metric([server.model, server.state], 1.0)
            if server.host is not None:
                info.add_metric([server.model], {"host": server.host, "spec_type": server.spec_type})
            restarts.add_metric([server.model], float(max(0, server.starts - 1)))
            if server.start_seconds is not None:
                start.add_metric([server.model], server.start_seconds)
        yield from (up, state, info, restarts, self._failures(), start)

    def _failures(self) -> Metric:
        family = CounterMetricFamily(
            "slipstream_server_failures",
            "Servers that did not start or ended by themselves since the orchestrator started.",
            labels=("model", "reason"),
        )
        for server in self._servers:
            # From 0 on: `rate()` does not see the first failure of a series that begins with it.
            known = dict.fromkeys(FAILURE_REASONS, 0) if server.starts or server.host is not None else {}
            for reason, count in {**known, **server.failures}.items():
                family.add_metric([server.model, reason], count)
        return family
