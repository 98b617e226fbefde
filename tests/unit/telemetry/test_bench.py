"""The gauges of measurements that are kept."""

from orchestrator.telemetry import render
from orchestrator.telemetry.bench import BenchCollector, BenchSample


def test_a_measurement_has_three_gauges_and_no_break_even_where_nothing_was_drafted() -> None:
    samples = [
        BenchSample("a", "draft-mtp", 1790000000.25, 1.31, 2.5),
        BenchSample("b", "ngram-simple", 1790000001.0, 0.99, None),
    ]
    page, _ = render([BenchCollector(samples)], "")
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    assert lines == [
        'slipstream_bench_speedup_ratio{model="a",spec_type="draft-mtp"} 1.31',
        'slipstream_bench_speedup_ratio{model="b",spec_type="ngram-simple"} 0.99',
        'slipstream_bench_break_even_tokens{model="a",spec_type="draft-mtp"} 2.5',
        'slipstream_bench_timestamp_seconds{model="a",spec_type="draft-mtp"} 1.79000000025e+09',
        'slipstream_bench_timestamp_seconds{model="b",spec_type="ngram-simple"} 1.790000001e+09',
    ]
