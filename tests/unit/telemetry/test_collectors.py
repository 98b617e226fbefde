"""Each collector over snapshots, and the page they make together."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import Code, SlipstreamError
from orchestrator.telemetry import Requests, ServerSnapshot, parse_child_metrics, render
from orchestrator.telemetry.relay import RelayCollector
from orchestrator.telemetry.servers import BuildCollector, ServerCollector
from orchestrator.telemetry.slots import SlotCollector
from tests import REPOSITORY

Labels = frozenset[tuple[str, str]]

PATCHED = """# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 386
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:slot_predicted_tokens_total counter
llamacpp:slot_predicted_tokens_total{slot="0"} 370
llamacpp:slot_predicted_tokens_total{slot="1"} 16
# TYPE llamacpp:slot_predicted_seconds_total counter
llamacpp:slot_predicted_seconds_total{slot="0"} 0.153654
# TYPE llamacpp:slot_draft_tokens_total counter
llamacpp:slot_draft_tokens_total{slot="0"} 653
# TYPE llamacpp:slot_accepted_tokens_total counter
llamacpp:slot_accepted_tokens_total{slot="0"} 149
# TYPE llamacpp:slot_relaxed_tokens_total counter
llamacpp:slot_relaxed_tokens_total{slot="0"} 3
# TYPE llamacpp:slot_verification_steps_total counter
llamacpp:slot_verification_steps_total{slot="0"} 217
# TYPE llamacpp:slot_accepted_tokens_per_position_total counter
llamacpp:slot_accepted_tokens_per_position_total{slot="0",position="0"} 100
llamacpp:slot_accepted_tokens_per_position_total{slot="0",position="1"} 49
# TYPE llamacpp:slot_busy gauge
llamacpp:slot_busy{slot="0"} 1
llamacpp:slot_busy{slot="1"} 0
"""


def snapshot(model: str = "m", text: str = "", **fields: Any) -> ServerSnapshot:
    base: dict[str, Any] = {
        "state": "ready",
        "is_ready": True,
        "spec_type": "draft-mtp",
        "starts": 1,
        "start_seconds": 0.5,
    }
    return ServerSnapshot(model=model, families=parse_child_metrics(text), **base | fields)


def values(families: Iterable[Metric]) -> dict[tuple[str, Labels], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def series(name: str, **labels: str) -> tuple[str, Labels]:
    return name, frozenset(labels.items())


def page(*servers: ServerSnapshot, requests: Requests | None = None) -> str:
    return render(servers, requests or Requests(), "0.1.0", "build 11434").decode()


class TestSlots:
    def test_the_warm_up_is_taken_off_counters_and_not_off_gauges(self) -> None:
        before = PATCHED.replace(" 653", " 13").replace(" 149", " 12").replace(" 100", " 7")
        found = values(SlotCollector([snapshot(text=PATCHED, warm_up=parse_child_metrics(before))]).collect())
        slot = {"model": "m", "slot": "0", "spec_type": "draft-mtp"}
        assert found[series("slipstream_slot_draft_tokens_total", **slot)] == 640
        assert found[series("slipstream_slot_accepted_tokens_total", **slot)] == 137
        assert found[series("slipstream_slot_accepted_tokens_per_position_total", **slot, position="0")] == 93
        assert found[series("slipstream_slot_busy", **slot)] == 1

    def test_counters_keep_their_values_and_gain_model_and_spec_type(self) -> None:
        found = values(SlotCollector([snapshot(text=PATCHED)]).collect())
        slot = {"model": "m", "slot": "0", "spec_type": "draft-mtp"}
        expected = {
            "predicted_tokens_total": 370,
            "predicted_seconds_total": 0.153654,
            "draft_tokens_total": 653,
            "accepted_tokens_total": 149,
            "relaxed_tokens_total": 3,
            "verification_steps_total": 217,
            "busy": 1,
        }
        assert {name: found[series(f"slipstream_slot_{name}", **slot)] for name in expected} == expected
        assert found[series("slipstream_slot_predicted_tokens_total", **slot | {"slot": "1"})] == 16

    def test_positions_are_rows_and_are_not_summed_into_the_total(self) -> None:
        found = values(SlotCollector([snapshot(text=PATCHED)]).collect())
        rows = {k: v for k, v in found.items() if k[0] == "slipstream_slot_accepted_tokens_per_position_total"}
        assert {dict(labels)["position"]: v for (_, labels), v in rows.items()} == {"0": 100, "1": 49}
        totals = [v for k, v in found.items() if k[0] == "slipstream_slot_accepted_tokens_total"]
        assert totals == [149] == [sum(rows.values())]

    @pytest.mark.parametrize("text", ["", "llamacpp:tokens_predicted_total 5\n"])
    def test_no_series_where_the_server_gives_none(self, text: str) -> None:
        assert values(SlotCollector([snapshot(text=text, is_ready=False)]).collect()) == {}

    def test_two_servers_share_a_family(self) -> None:
        families = list(SlotCollector([snapshot("a", PATCHED), snapshot("b", PATCHED)]).collect())
        assert len({family.name for family in families}) == len(families)
        busy = [k for k in values(families) if k[0] == "slipstream_slot_busy"]
        assert {dict(labels)["model"] for _, labels in busy} == {"a", "b"}


class TestRelay:
    def test_series_keep_their_names_and_gain_the_model(self) -> None:
        found = values(RelayCollector([snapshot("a", PATCHED), snapshot("b", PATCHED)]).collect())
        assert found[series("llamacpp:tokens_predicted_total", model="a")] == 386
        assert found[series("llamacpp:requests_processing", model="b")] == 1

    def test_slot_series_are_not_told_twice(self) -> None:
        found = values(RelayCollector([snapshot(text=PATCHED)]).collect())
        assert not [name for name, _ in found if "slot_" in name]

    def test_only_the_servers_own_namespace_is_relayed(self) -> None:
        text = 'slipstream_server_up{model="m"} 0\npython_info 1\nllamacpp:x_total 1\n'
        found = values(RelayCollector([snapshot(text=text)]).collect())
        assert {name for name, _ in found} == {"llamacpp:x_total"}

    def test_a_model_label_of_the_server_does_not_win(self) -> None:
        found = values(RelayCollector([snapshot(text='llamacpp:x_total{model="other"} 1\n')]).collect())
        assert list(found) == [series("llamacpp:x_total", model="m")]


class TestServers:
    def test_state_is_shown(self) -> None:
        found = values(ServerCollector([snapshot(starts=3)]).collect())
        assert found == {
            series("slipstream_server_up", model="m"): 1,
            series("slipstream_server_state", model="m", state="ready"): 1,
            series("slipstream_server_restarts_total", model="m"): 2,
            series("slipstream_server_start_seconds", model="m"): 0.5,
        }

    def test_a_server_that_never_ran_has_no_start_time(self) -> None:
        found = values(
            ServerCollector([snapshot(starts=0, start_seconds=None, state="stopped", is_ready=False)]).collect()
        )
        assert found[series("slipstream_server_up", model="m")] == 0
        assert found[series("slipstream_server_restarts_total", model="m")] == 0
        assert not [name for name, _ in found if name == "slipstream_server_start_seconds"]

    def test_versions_may_hold_anything(self) -> None:
        assert 'llama_server="a\\"b\\\\c\\nd"' in render([], Requests(), "1", 'a"b\\c\nd').decode()


def test_requests_are_counted_by_model_and_outcome() -> None:
    requests = Requests()
    for outcome in ("ok", "ok", "cancelled"):
        requests.count("m", outcome)
    assert values(requests.collect()) == {
        series("slipstream_requests_total", model="m", outcome="ok"): 2,
        series("slipstream_requests_total", model="m", outcome="cancelled"): 1,
    }


class TestSnapshot:
    @pytest.mark.parametrize(
        "text",
        [
            "<html>oops</html>",
            "llamacpp:x_total{",
            'llamacpp:x_total{slot="0} 1',
            "llamacpp:x_total one",
            "llamacpp:x_total",
            "# TYPE llamacpp:x nonsense\nllamacpp:x 1",
            "# TYPE",
            "\0\1\2",
            "{}",
            '{"error": {"code": 503}}',
            "} {",
            'x{a="b",} 1 2 3 4',
            "# TYPE llamacpp:x counter\n# TYPE llamacpp:x counter\nllamacpp:x_total 1",
        ],
    )
    def test_garbage_is_one_kind_of_error_or_harmless(self, text: str) -> None:
        try:
            families = parse_child_metrics(text)
        except SlipstreamError as e:
            assert e.code is Code.UPSTREAM_FAILED
            return
        made = ServerSnapshot("m", "ready", True, "none", 1, 0.1, families)
        list(text_string_to_metric_families(page(made)))

    def test_values_survive_a_round_trip(self) -> None:
        text = "llamacpp:a_total 9007199254740991\nllamacpp:b 1e-09\nllamacpp:c NaN\nllamacpp:d +Inf\n"
        found = values(text_string_to_metric_families(page(snapshot(text=text))))
        assert found[series("llamacpp:a_total", model="m")] == 9007199254740991
        assert found[series("llamacpp:b", model="m")] == 1e-09
        assert str(found[series("llamacpp:c", model="m")]) == "nan"
        assert found[series("llamacpp:d", model="m")] == float("inf")


class TestPage:
    def test_it_reads_back_with_one_type_and_help_a_family(self) -> None:
        requests = Requests()
        requests.count('odd"name', "ok")
        text = page(snapshot("a", PATCHED), snapshot("b", PATCHED), requests=requests)
        types = re.findall(r"^# TYPE (\S+) ", text, re.M)
        assert len(types) == len(set(types))
        families = list(text_string_to_metric_families(text))
        names = [(s.name, frozenset(s.labels.items())) for family in families for s in family.samples]
        assert len(names) == len(set(names)), "a series stands on the page once"
        assert all(family.documentation for family in families if family.name.startswith("slipstream_"))

    def test_counters_are_typed_as_counters(self) -> None:
        families = {family.name: family.type for family in text_string_to_metric_families(page(snapshot(text=PATCHED)))}
        assert families["slipstream_slot_draft_tokens"] == "counter"
        assert families["slipstream_slot_busy"] == "gauge"
        assert families["llamacpp:tokens_predicted"] == "counter"
        assert families["llamacpp:requests_processing"] == "gauge"

    def test_labels_are_the_bounded_ones(self) -> None:
        families = text_string_to_metric_families(page(snapshot(text=PATCHED)))
        labels = {name for family in families for sample in family.samples for name in sample.labels}
        assert labels <= {"model", "slot", "spec_type", "position", "outcome", "state", "version", "llama_server"}


def test_the_document_lists_exactly_our_metrics() -> None:
    ours: set[tuple[str, str, tuple[str, ...]]] = set()
    requests = Requests()
    requests.count("m", "ok")
    server = [snapshot(text=PATCHED)]
    for collector in (BuildCollector("1", "2"), ServerCollector(server), SlotCollector(server), requests):
        for family in collector.collect():
            labels = tuple(sorted({label for sample in family.samples for label in sample.labels}))
            name = family.samples[0].name
            ours.add((name, family.documentation, labels))
    rows = re.findall(
        r"^\| `(slipstream_\w+)` \| (.*?) \| (.*?) \|$", (REPOSITORY / "docs/metrics.md").read_text(), re.M
    )
    written = {(name, text, tuple(re.findall(r"`(\w+)`", labels))) for name, labels, text in rows}
    assert written == ours
