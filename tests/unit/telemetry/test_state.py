"""Collectors that show state and counts which others keep: timeline, devices, jobs."""

from orchestrator.telemetry.devices import DeviceCollector, HostSnapshot
from orchestrator.telemetry.jobs import JobCollector
from orchestrator.telemetry.timeline import TimelineCollector
from tests.unit.telemetry.exposed import series, values


def test_the_last_event_of_each_sort() -> None:
    last = {("m", "loaded"): 1790000000.25, ("m", "flags"): 1790000000.25, ("other", "failed"): 17.0}
    assert values(TimelineCollector(last).collect()) == {
        series("slipstream_event_timestamp_seconds", model="m", event="loaded"): 1790000000.25,
        series("slipstream_event_timestamp_seconds", model="m", event="flags"): 1790000000.25,
        series("slipstream_event_timestamp_seconds", model="other", event="failed"): 17.0,
    }


def test_devices_of_hosts() -> None:
    gpus = HostSnapshot("gpus", 1, 2, {"host": 100, "CUDA0": 30}, {"CUDA0": 12, "CUDA7": 1})
    found = values(DeviceCollector([gpus, HostSnapshot("plain")]).collect())
    assert found == {
        series("slipstream_device_budget_bytes", host="gpus", device="host"): 100,
        series("slipstream_device_budget_bytes", host="gpus", device="CUDA0"): 30,
        series("slipstream_device_reserved_bytes", host="gpus", device="host"): 0,
        series("slipstream_device_reserved_bytes", host="gpus", device="CUDA0"): 12,
        series("slipstream_device_reserved_bytes", host="gpus", device="CUDA7"): 1,
        series("slipstream_host_accelerators", host="gpus"): 1,
        series("slipstream_host_accelerators_expected", host="gpus"): 2,
        series("slipstream_host_accelerators", host="plain"): 0,
        series("slipstream_host_accelerators_expected", host="plain"): 0,
    }


def test_jobs_and_what_they_brought() -> None:
    collector = JobCollector({("pull", "running"): 1}, {("pull", "failed"): 2, ("graft", "succeeded"): 0}, {"hf": 9000})
    assert values(collector.collect()) == {
        series("slipstream_jobs", kind="pull", state="running"): 1,
        series("slipstream_jobs_ended_total", kind="pull", outcome="failed"): 2,
        series("slipstream_jobs_ended_total", kind="graft", outcome="succeeded"): 0,
        series("slipstream_download_bytes_total", source="hf"): 9000,
        series("slipstream_download_bytes_total", source="url"): 0,
        series("slipstream_download_bytes_total", source="pypi"): 0,
    }
