"""Requests of the gateway as series, beside what the client library makes of the same values."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.samples import Sample

from orchestrator.telemetry import TOKEN_BUCKETS, Gaps, Measured, Requests, render
from orchestrator.telemetry.gaps import GapHistogram

TRACE = "0123456789abcdef0123456789abcdef"
MEASURED = Measured(2.0, 0.5, 0.01, Gaps([0] * 22 + [3], 40.0, 20.0), {"trace_id": TRACE})
HISTOGRAMS = (
    "slipstream_request_seconds",
    "slipstream_time_to_first_token_seconds",
    "slipstream_time_per_output_token_seconds",
    "slipstream_inter_token_latency_seconds",
)


def samples(metrics: Iterable[Metric]) -> list[Sample]:
    return [sample for family in metrics for sample in family.samples]


def value(requests: Requests, name: str, **labels: str) -> float | None:
    found = [s.value for s in samples(requests.collect()) if s.name == name and labels.items() <= s.labels.items()]
    assert len(found) <= 1
    return found[0] if found else None


def gaps_of(values: list[float]) -> Gaps:
    counts = [0] * (len(TOKEN_BUCKETS) + 1)
    for gap in values:
        counts[sum(gap > bound for bound in TOKEN_BUCKETS)] += 1
    return Gaps(counts, sum(values), max(values))


def test_a_request_is_seen_from_its_first_moment() -> None:
    requests = Requests()
    requests.began("m")
    assert value(requests, "slipstream_requests_running", model="m") == 1
    assert value(requests, "slipstream_requests_total", model="m", outcome="ok") == 0
    assert [value(requests, f"{name}_count", model="m") for name in HISTOGRAMS] == [0, 0, 0, 0]
    requests.ended("m", "ok", MEASURED)
    assert value(requests, "slipstream_requests_running", model="m") == 0
    assert value(requests, "slipstream_requests_total", model="m", outcome="ok") == 1
    assert [value(requests, f"{name}_count", model="m") for name in HISTOGRAMS] == [1, 1, 1, 3]
    assert [value(requests, f"{name}_sum", model="m") for name in HISTOGRAMS] == [2.0, 0.5, 0.01, 40.0]


def test_what_was_not_measured_is_not_counted() -> None:
    requests = Requests()
    requests.began("m")
    requests.ended("m", "cancelled", Measured())
    assert [value(requests, f"{name}_count", model="m") for name in HISTOGRAMS] == [0, 0, 0, 0]
    assert value(requests, "slipstream_requests_total", model="m", outcome="cancelled") == 1


def test_series_end_with_their_model_but_not_under_a_request() -> None:
    requests = Requests()
    for model in ("gone", "busy", "kept"):
        requests.began(model)
    for model in ("gone", "kept"):
        requests.ended(model, "ok", MEASURED)
    requests.keep_only({"kept"})
    assert {s.labels["model"] for s in samples(requests.collect())} == {"busy", "kept"}
    requests.ended("busy", "ok", MEASURED)
    requests.keep_only({"kept"})
    assert {s.labels["model"] for s in samples(requests.collect())} == {"kept"}


def test_gaps_make_the_histogram_that_the_library_makes_of_them() -> None:
    answers = [[0.0005, 0.001, 0.0011, 0.3], [12.0], [0.02, 10.0]]
    registry = CollectorRegistry()
    theirs = Histogram("h", "H.", ("model",), registry=registry, buckets=TOKEN_BUCKETS)
    ours = GapHistogram("h", "H.")
    ours.expect("m")
    for answer in answers:
        ours.add("m", gaps_of(answer), 0.0)
        for gap in answer:
            theirs.labels("m").observe(gap)
    expected = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples(registry.collect())}
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples(ours.collect())}
    assert found == pytest.approx(expected)


def test_the_trace_of_a_request_is_an_exemplar_of_what_was_measured() -> None:
    requests = Requests()
    requests.began("m")
    requests.ended("m", "ok", MEASURED)
    page, _ = render([requests], "application/openmetrics-text; version=1.0.0")
    lines = [line for line in page.decode().splitlines() if TRACE in line]
    assert sorted(line.partition("_bucket")[0] for line in lines) == sorted(HISTOGRAMS)
    plain = Requests()
    plain.began("m")
    plain.ended("m", "ok", MEASURED._replace(exemplar=None))
    assert not [s for s in samples(plain.collect()) if s.exemplar]
