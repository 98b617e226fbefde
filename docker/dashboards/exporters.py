"""Series that others export and the dashboards, rules and alerts ask for. Tests hold every query to these lists."""

from collections.abc import Mapping

# Prometheus' own.
PROMETHEUS = frozenset({"up", "ALERTS"})

# tools/server/README.md of the pinned llama.cpp; docs/metrics.md: they are relayed with `model`.
LLAMA_SERVER = frozenset({"llamacpp:requests_deferred"})

# By job of docker/prometheus/prometheus.yml.
EXPORTERS: Mapping[str, frozenset[str]] = {
    # A test holds them to the real node exporter, with the collectors that docker/exporters.yaml switches on.
    "node": frozenset(
        {
            "node_cpu_seconds_total",
            "node_disk_read_bytes_total",
            "node_filesystem_avail_bytes",
            "node_load1",
            "node_memory_MemAvailable_bytes",
            "node_memory_MemTotal_bytes",
            "node_pressure_cpu_waiting_seconds_total",
            "node_pressure_io_waiting_seconds_total",
            "node_pressure_memory_waiting_seconds_total",
        }
    ),
    # google/cadvisor: docs/storage/prometheus.md.
    "cadvisor": frozenset({"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}),
    # NVIDIA/dcgm-exporter: etc/default-counters.csv.
    "nvidia": frozenset(
        {
            "DCGM_FI_DEV_FB_FREE",
            "DCGM_FI_DEV_FB_USED",
            "DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_DEV_GPU_UTIL",
            "DCGM_FI_DEV_POWER_USAGE",
        }
    ),
    # ROCm/device-metrics-exporter: docs/configuration/metricslist.md, in small letters as it exports them.
    "rocm": frozenset(
        {
            "gpu_edge_temperature",
            "gpu_gfx_activity",
            "gpu_junction_temperature",
            "gpu_power_usage",
            "gpu_total_vram",
            "gpu_used_vram",
        }
    ),
}

FOREIGN = frozenset().union(PROMETHEUS, LLAMA_SERVER, *EXPORTERS.values())
