"""Memory that servers may have and have been given, and the accelerators of hosts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True)
class HostSnapshot:
    """One host at scrape time; sizes by device, `host` is its RAM."""

    name: str
    accelerators: int = 0
    expected_accelerators: int = 0
    budget_bytes: Mapping[str, int] = field(default_factory=dict)
    reserved_bytes: Mapping[str, int] = field(default_factory=dict)


class DeviceCollector(Collector):
    """What the scheduler counts with; how full a device really is, the exporters of its maker tell.

    ```
    slipstream_device_budget_bytes{device="CUDA0",host="local"} 3.2e+10
    slipstream_device_reserved_bytes{device="CUDA0",host="local"} 1.1e+10
    slipstream_host_accelerators{host="local"} 1.0
    slipstream_host_accelerators_expected{host="local"} 1.0
    ```
    """

    def __init__(self, hosts: Sequence[HostSnapshot]) -> None:
        self._hosts = hosts

    def collect(self) -> Iterator[Metric]:
        """Two gauges by device, two by host."""
        labels = ("host", "device")
        budget = GaugeMetricFamily(
            "slipstream_device_budget_bytes", "Memory that servers may hold there, bytes.", labels=labels
        )
        reserved = GaugeMetricFamily(
            "slipstream_device_reserved_bytes", "Memory set aside for servers there, bytes.", labels=labels
        )
        seen = GaugeMetricFamily(
            "slipstream_host_accelerators", "Accelerators that llama-server sees on the host.", labels=("host",)
        )
        expected = GaugeMetricFamily(
            "slipstream_host_accelerators_expected",
            "Accelerators that settings or the hosts file say there are; 0 when they say nothing.",
            labels=("host",),
        )
        for host in self._hosts:
            for device, size in host.budget_bytes.items():
                budget.add_metric([host.name, device], size)
            for device in {**host.budget_bytes, **host.reserved_bytes}:
                reserved.add_metric([host.name, device], host.reserved_bytes.get(device, 0))
            seen.add_metric([host.name], host.accelerators)
            expected.add_metric([host.name], host.expected_accelerators)
        yield from (budget, reserved, seen, expected)
