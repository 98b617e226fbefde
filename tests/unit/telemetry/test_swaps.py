from orchestrator.telemetry import render
from orchestrator.telemetry.histograms import ModelHistogram
from orchestrator.telemetry.swaps import SwapCollector, Swaps
from tests.unit.telemetry.exposed import series, values

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def test_waits_and_loads_fall_into_buckets() -> None:
    swaps = Swaps()
    for seconds in (0.0, 0.004, 7.5, 700.0):
        swaps.wait_seconds.observe("m", seconds)
    found = values(SwapCollector(swaps, {"m": 2, "other": 0}).collect())
    buckets = {le: found[series("slipstream_swap_wait_seconds_bucket", model="m", le=le)] for le in ("0.005", "10.0")}
    assert buckets == {"0.005": 2, "10.0": 3}
    assert found[series("slipstream_swap_wait_seconds_bucket", model="m", le="+Inf")] == 4
    assert found[series("slipstream_swap_wait_seconds_sum", model="m")] == 707.504
    assert found[series("slipstream_swap_queue_length", model="m")] == 2
    assert found[series("slipstream_swap_queue_length", model="other")] == 0
    assert not [name for name, _ in found if name.endswith("_created")]


def test_a_model_begins_at_0_before_it_is_loaded_and_keeps_what_it_has() -> None:
    swaps = Swaps()
    swaps.keep_only({"m"})
    loads, waits = (series(f"slipstream_swap_{name}_count", model="m") for name in ("seconds", "wait_seconds"))
    found = values(SwapCollector(swaps, {}).collect())
    assert (found[loads], found[waits]) == (0, 0)
    swaps.load_seconds.observe("m", 1.0)
    swaps.keep_only({"m"})
    assert values(SwapCollector(swaps, {}).collect())[loads] == 1


def test_series_end_with_their_model_and_begin_anew() -> None:
    swaps = Swaps()
    for model in ("gone", "kept"):
        swaps.load_seconds.observe(model, 1.0)
        swaps.wait_seconds.observe(model, 1.0)
    swaps.keep_only({"kept"})
    found = values(SwapCollector(swaps, {"kept": 0}).collect())
    assert {dict(labels)["model"] for _, labels in found} == {"kept"}
    swaps.load_seconds.observe("gone", 3.0)
    again = values(SwapCollector(swaps, {}).collect())
    assert again[series("slipstream_swap_seconds_sum", model="gone")] == 3.0


def test_an_exemplar_is_shown_where_it_is_given() -> None:
    histogram = ModelHistogram("slipstream_x_seconds", "X.", (1.0,))
    histogram.observe("m", 0.5)
    assert b"trace_id" not in render([histogram], OPENMETRICS)[0]
    histogram.observe("m", 0.5, {"trace_id": "4bf92f35"})
    assert b'# {trace_id="4bf92f35"} 0.5' in render([histogram], OPENMETRICS)[0]
    assert b"trace_id" not in render([histogram], "text/plain")[0]
