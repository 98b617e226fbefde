"""The page as a whole, in both formats."""

import re
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.registry import Collector

from orchestrator.telemetry import Look, Requests, render
from orchestrator.telemetry.acceptance import AcceptedLengthCollector
from orchestrator.telemetry.build import BuildCollector
from orchestrator.telemetry.flags import FlagsCollector
from orchestrator.telemetry.histograms import ModelHistogram
from orchestrator.telemetry.relay import RelayCollector
from orchestrator.telemetry.scrapes import ScrapeCollector
from orchestrator.telemetry.slots import SlotCollector
from tests.unit.telemetry.exposed import PATCHED, STOCK, look, series, values

# As Prometheus asks, by default and with names in UTF-8.
OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,*/*;q=0.1"
)
UTF8 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
ODD = '# TYPE llamacpp:odd histogram\nllamacpp:odd_bucket{le="1"} 1\nllamacpp:nothing_said_total 1\nllamacpp:nan NaN\n'


def collectors(found: Look) -> list[Collector]:
    requests = Requests()
    requests.count('odd"name\\\n', "ok")
    waits = ModelHistogram("slipstream_test_seconds", "A test.", (0.5, 1.0))
    waits.observe("a", 0.75, {"trace_id": "0af7651916cd43dd8448eb211c80319c"})
    return [
        BuildCollector("0.1.0", 'a"b\\c\nd'),
        SlotCollector(found),
        AcceptedLengthCollector(found),
        FlagsCollector(found),
        RelayCollector(found),
        ScrapeCollector(found),
        requests,
        waits,
    ]


def read(found: Look, accept: str) -> tuple[list[Metric], str]:
    page, content_type = render(collectors(found), accept)
    reader = read_openmetrics if content_type.startswith("application/openmetrics-text") else read_text
    return list(reader(page.decode())), page.decode()


@pytest.mark.parametrize("accept", ["", "text/html", OPENMETRICS, UTF8])
@pytest.mark.parametrize("pages", [{"a": PATCHED, "b": PATCHED}, {"a": STOCK}, {"a": PATCHED, "b": STOCK + ODD}, {}])
def test_it_reads_back_and_each_series_stands_once(accept: str, pages: dict[str, str]) -> None:
    found = look(**pages)
    families, text = read(found, accept)
    types = re.findall(r"^# TYPE (\S+) ", text, re.M)
    assert len(types) == len(set(types))
    samples = [(s.name, frozenset(s.labels.items())) for family in families for s in family.samples]
    assert len(samples) == len(set(samples))
    shown = values(families)
    for key, value in values(_families(collectors(found))).items():
        assert shown[key] == value or (shown[key] != shown[key] and value != value), key
    assert all(family.documentation for family in families if family.name.startswith("slipstream_"))


def test_the_format_is_the_one_asked_for() -> None:
    for accept in ("", "*/*", ";;;,", "\0,;=;,", "application/openmetrics-text;version=abc", "text/plain;version=9"):
        assert render([], accept)[1].startswith("text/plain; version=0.0.4")
    for accept in (OPENMETRICS, UTF8, "Application/OpenMetrics-text"):
        page, content_type = render([], accept)
        assert (page, content_type) == (b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8")


def test_relayed_names_keep_their_colon_in_openmetrics() -> None:
    families, _ = read(look(m=PATCHED), OPENMETRICS)
    assert values(families)[series("llamacpp:tokens_predicted_total", model="m")] == 386


def test_exemplars_are_shown_in_openmetrics_alone() -> None:
    found = look(m=PATCHED)
    assert "trace_id" in read(found, OPENMETRICS)[1]
    assert "trace_id" not in read(found, "")[1]


def test_counters_are_typed_as_counters() -> None:
    for accept in ("", OPENMETRICS):
        kinds = {family.name: family.type for family in read(look(m=PATCHED), accept)[0]}
        assert kinds["slipstream_slot_draft_tokens"] == kinds["llamacpp:tokens_predicted"] == "counter"
        assert kinds["slipstream_slot_busy"] == kinds["llamacpp:requests_processing"] == "gauge"
        assert kinds["slipstream_accepted_length_tokens"] == "histogram"


def test_values_survive_a_round_trip() -> None:
    page = "llamacpp:a 9007199254740991\nllamacpp:b 1e-09\nllamacpp:c NaN\nllamacpp:d +Inf\n"
    slots = (
        '# TYPE llamacpp:slot_draft_tokens_total counter\nllamacpp:slot_draft_tokens_total{slot="0"} 9007199254740991\n'
    )
    shown = values(read(look(m=page + slots), "")[0])
    assert shown[series("llamacpp:a", model="m")] == 9007199254740991
    assert shown[series("llamacpp:b", model="m")] == 1e-09
    assert str(shown[series("llamacpp:c", model="m")]) == "nan"
    assert shown[series("llamacpp:d", model="m")] == float("inf")
    slot = series("slipstream_slot_draft_tokens_total", model="m", slot="0", spec_type="draft-mtp")
    assert shown[slot] == 9007199254740991


def _families(found: Iterable[Collector]) -> Iterator[Metric]:
    for collector in found:
        yield from collector.collect()
