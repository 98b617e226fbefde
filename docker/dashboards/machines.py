"""Machines: processor, memory, disks, containers and accelerators, from the exporters of the compose profiles."""

from dashboards.common import ALERTS
from dashboards.model import Dashboard, Query, Row, Variable
from dashboards.promql import HOST, RATE, quotient
from dashboards.views import BYTES, BYTES_PER_SECOND, COUNT, RATIO, lines, table

# The exporters are asked every 15 s, so a shorter step has nothing to show; docker/prometheus/prometheus.yml.
_STEP = "15s"
_NO_NODE = "no node exporter: COMPOSE_PROFILES=machine"
_NO_CONTAINERS = "no cAdvisor: COMPOSE_PROFILES=machine"
_NO_GPU = "no exporter: COMPOSE_PROFILES=nvidia or rocm"
_NVIDIA, _AMD = "{{host}}: NVIDIA {{gpu}}", "{{host}}: AMD {{gpu_id}}"


def _query(expr: str, legend: str) -> Query:
    return Query(expr, legend, min_step=_STEP)


_BUSY = f'1 - avg by (host) (rate(node_cpu_seconds_total{{{HOST}, mode="idle"}}[{RATE}]))'
_USED = quotient(
    f"sum by (host) (node_memory_MemTotal_bytes{{{HOST}}} - node_memory_MemAvailable_bytes{{{HOST}}})",
    f"sum by (host) (node_memory_MemTotal_bytes{{{HOST}}})",
)
_RESERVED = f"sum by (host, device) (slipstream_device_reserved_bytes{{{HOST}}})"
_BUDGET = f"sum by (host, device) (slipstream_device_budget_bytes{{{HOST}}})"


def _pressure(what: str) -> str:
    return f"sum by (host) (rate(node_pressure_{what}_waiting_seconds_total{{{HOST}}}[{RATE}]))"


_BUDGETS = Row(
    "What servers may take",
    (
        lines(
            "Reserved of the budget",
            "Memory that Slipstream has set aside for servers, of what it may use, per device. Not what they use: the "
            "rows below measure that.",
            (Query(quotient(_RESERVED, _BUDGET), "{{host}}: {{device}}"),),
            RATIO,
            no_value="no budget",
            width=8,
            top=1,
        ),
        lines(
            "Reserved",
            "Memory that Slipstream has set aside for servers, and the budget it comes from, per device.",
            (
                Query(_RESERVED, "{{host}}: {{device}} reserved"),
                Query(_BUDGET, "{{host}}: {{device}} budget"),
            ),
            BYTES,
            no_value="no budget",
            width=8,
        ),
        table(
            "Accelerators",
            "Accelerators that each host shows, and those that it is to have. Fewer than expected is an alert.",
            {
                "Found": Query(f"max by (host) (slipstream_host_accelerators{{{HOST}}})", "", True, "table"),
                "Expected": Query(
                    f"max by (host) (slipstream_host_accelerators_expected{{{HOST}}})", "", True, "table"
                ),
            },
            {},
            {"host": "Host"},
            no_value="not known",
            width=8,
        ),
    ),
)
_PROCESSOR = Row(
    "Processor, memory, disks",
    (
        lines(
            "Processor",
            "Share of the processor's time that was not idle.",
            (_query(_BUSY, "{{host}}"),),
            RATIO,
            _NO_NODE,
            width=8,
            top=1,
        ),
        lines(
            "Memory",
            "Memory in use that the kernel cannot give back at once, of all there is. The page cache of model files is "
            "not in it.",
            (_query(_USED, "{{host}}"),),
            RATIO,
            _NO_NODE,
            width=8,
            top=1,
        ),
        lines(
            "Waiting",
            "Share of the time in which some task waited for the processor, for memory or for a disk (pressure stall "
            "information of the kernel).",
            (
                _query(_pressure("cpu"), "{{host}}: processor"),
                _query(_pressure("memory"), "{{host}}: memory"),
                _query(_pressure("io"), "{{host}}: disk"),
            ),
            RATIO,
            _NO_NODE,
            width=8,
        ),
        lines(
            "Disks read",
            "Bytes read from disks per second: high while a model is loaded, and while its file does not fit the page "
            "cache.",
            (_query(f"sum by (host) (rate(node_disk_read_bytes_total{{{HOST}}}[{RATE}]))", "{{host}}"),),
            BYTES_PER_SECOND,
            _NO_NODE,
            width=8,
        ),
        lines(
            "Room left",
            "Bytes that are free on each file system.",
            (
                _query(
                    f"min by (host, device) (node_filesystem_avail_bytes{{{HOST}}})",
                    "{{host}}: {{device}}",
                ),
            ),
            BYTES,
            _NO_NODE,
            width=8,
        ),
        lines(
            "Load",
            "Tasks that run or wait to run, averaged over a minute, and the processors there are for them.",
            (
                _query(f"max by (host) (node_load1{{{HOST}}})", "{{host}}: load"),
                _query(f'count by (host) (node_cpu_seconds_total{{{HOST}, mode="idle"}})', "{{host}}: processors"),
            ),
            COUNT,
            _NO_NODE,
            width=8,
        ),
    ),
)
_CONTAINERS = Row(
    "Containers",
    (
        lines(
            "Processors in use",
            "Processors that each container keeps busy.",
            (
                _query(
                    f'sum by (host, name) (rate(container_cpu_usage_seconds_total{{{HOST}, name!=""}}[{RATE}]))',
                    "{{host}}: {{name}}",
                ),
            ),
            COUNT,
            _NO_CONTAINERS,
        ),
        lines(
            "Memory in use",
            "Memory that each container cannot do without; the kernel ends the container when it needs more than its "
            "limit.",
            (
                _query(
                    f'sum by (host, name) (container_memory_working_set_bytes{{{HOST}, name!=""}})',
                    "{{host}}: {{name}}",
                ),
            ),
            BYTES,
            _NO_CONTAINERS,
        ),
    ),
)
_GPUS = Row(
    "Accelerators",
    (
        lines(
            "Accelerators at work",
            "Share of the time in which at least one kernel ran. It says busy, not how well.",
            (
                _query(f"DCGM_FI_DEV_GPU_UTIL{{{HOST}}} / 100", _NVIDIA),
                _query(f"gpu_gfx_activity{{{HOST}}} / 100", _AMD),
            ),
            RATIO,
            _NO_GPU,
            top=1,
        ),
        lines(
            "Memory of accelerators",
            "Memory in use of what the accelerator has, by whomever.",
            (
                _query(
                    f"DCGM_FI_DEV_FB_USED{{{HOST}}} / "
                    f"(DCGM_FI_DEV_FB_USED{{{HOST}}} + DCGM_FI_DEV_FB_FREE{{{HOST}}} > 0)",
                    _NVIDIA,
                ),
                _query(f"gpu_used_vram{{{HOST}}} / (gpu_total_vram{{{HOST}}} > 0)", _AMD),
            ),
            RATIO,
            _NO_GPU,
            top=1,
        ),
        lines(
            "Power",
            "Power draw.",
            (
                _query(f"DCGM_FI_DEV_POWER_USAGE{{{HOST}}}", _NVIDIA),
                _query(f"gpu_power_usage{{{HOST}}}", _AMD),
            ),
            "watt",
            _NO_GPU,
        ),
        lines(
            "Temperature",
            "Of the chip; AMD's hottest spot where it is measured.",
            (
                _query(f"DCGM_FI_DEV_GPU_TEMP{{{HOST}}}", _NVIDIA),
                _query(f"gpu_junction_temperature{{{HOST}}} or gpu_edge_temperature{{{HOST}}}", _AMD),
            ),
            "celsius",
            _NO_GPU,
        ),
    ),
)

MACHINES = Dashboard(
    "machines",
    "Slipstream: Machines",
    "What servers may take and take, per host.",
    (_BUDGETS, _PROCESSOR, _CONTAINERS, _GPUS),
    (Variable("host", "Host", "slipstream_host_accelerators"),),
    (ALERTS,),
)
