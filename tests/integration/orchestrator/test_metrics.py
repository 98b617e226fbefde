"""The metrics page over real servers: counters that move while an answer is made, per slot."""

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.orchestrator.conftest import THREADS, MakeOrchestrator
from tests.integration.orchestrator.streams import open_stream
from tests.support import Samples, ToyBox, eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator

pytestmark = pytest.mark.integration

TOKENS_PREDICTED = "llamacpp:tokens_predicted_total"
SLOT_COUNTERS = (
    "predicted_tokens_total",
    "predicted_seconds_total",
    "draft_tokens_total",
    "accepted_tokens_total",
    "verification_steps_total",
)


def scrape(house: Orchestrator) -> Samples:
    return Samples.parse(house.http.get("/metrics").raise_for_status().text)


def of_slot(samples: Samples, name: str, slot: int, model: str = "toy", spec_type: str = "draft-mtp") -> float:
    labels = {"model": model, "slot": str(slot), "spec_type": spec_type}
    return samples.values[f"slipstream_slot_{name}", frozenset(labels.items())]


def counters_of(samples: Samples, model: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What the servers of a model have counted."""
    of_servers = ("slipstream_slot_", "llamacpp:")
    return {
        (name, labels): value
        for (name, labels), value in samples.values.items()
        if name.startswith(of_servers) and name.endswith("_total") and ("model", model) in labels
    }


def test_the_page_reads_back(house: Orchestrator) -> None:
    house.start_model("toy")
    response = house.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    assert len({family.name for family in families}) == len(families)
    names = [(s.name, frozenset(s.labels.items())) for family in families for s in family.samples]
    assert len(set(names)) == len(names)
    relayed = [family for family in families if family.name.startswith("llamacpp:")]
    assert relayed
    assert all("model" in sample.labels for family in relayed for sample in family.samples)
    assert all(family.name.startswith(("llamacpp:", "slipstream_")) for family in families)
    assert not [family.name for family in relayed if family.name.startswith("llamacpp:slot_")]


def test_counters_of_both_slots_move_while_both_are_at_work(house: Orchestrator) -> None:
    house.start_model("toy")
    long_answer = {"model": "toy", "max_tokens": 8000, "ignore_eos": True, "speculative.n_max": 1}
    before = scrape(house)
    with open_stream(house, **long_answer) as one, open_stream(house, **long_answer) as two:
        one.begin()
        two.begin()
        seen = [before, *_busy_scrapes(house, before)]
    for slot in (0, 1):
        for name in SLOT_COUNTERS:
            values = [of_slot(samples, name, slot) for samples in seen]
            assert values == sorted(set(values)), f"{name} of slot {slot} grows from scrape to scrape: {values}"
        assert of_slot(seen[0], "busy", slot) == 0


def _busy_scrapes(house: Orchestrator, before: Samples) -> list[Samples]:
    """Three scrapes while both slots are busy, each taken once every counter has moved since the last one."""
    found: list[Samples] = []

    def next_one() -> bool:
        samples = scrape(house)
        assert of_slot(samples, "busy", 0) == of_slot(samples, "busy", 1) == 1, "the answers ended too early"
        last = found[-1] if found else before
        pairs = [(of_slot(last, name, slot), of_slot(samples, name, slot)) for name in SLOT_COUNTERS for slot in (0, 1)]
        if any(new <= old for old, new in pairs):
            return False
        found.append(samples)
        return len(found) == 3

    eventually(next_one, "three scrapes with moving counters")
    return found


def test_counters_agree_with_what_the_answers_said(house: Orchestrator) -> None:
    house.command("toy", "restart").raise_for_status()
    before = scrape(house)
    timings = [house.chat("toy", f"question {i}", max_tokens=50, temperature=0).json()["timings"] for i in range(4)]
    after = scrape(house)

    def grown(name: str) -> float:
        return sum(of_slot(after, name, slot) - of_slot(before, name, slot) for slot in (0, 1))

    assert grown("predicted_tokens_total") == sum(t["predicted_n"] for t in timings)
    assert grown("draft_tokens_total") == sum(t["draft_n"] for t in timings)
    assert grown("accepted_tokens_total") == sum(t["draft_n_accepted"] for t in timings)
    assert grown("verification_steps_total") == sum(t["draft_n_steps"] for t in timings)
    positions = sum(v for (name, _), v in after.values.items() if name.endswith("per_position_total"))
    accepted = sum(of_slot(after, "accepted_tokens_total", slot) for slot in (0, 1))
    assert positions == accepted
    labels = {"model": "toy", "spec_type": "draft-mtp"}
    assert house.metric("slipstream_accepted_length_tokens_sum", **labels) == accepted
    steps = sum(of_slot(after, "verification_steps_total", slot) for slot in (0, 1))
    assert house.metric("slipstream_accepted_length_tokens_count", **labels) == steps


def test_the_warm_up_is_not_counted(house: Orchestrator) -> None:
    house.start_model("toy")
    before = counters_of(scrape(house), "toy")
    house.command("toy", "restart").raise_for_status()
    assert counters_of(scrape(house), "toy") == before
    house.chat("toy", max_tokens=20).raise_for_status()
    after = counters_of(scrape(house), "toy")
    predicted = [key for key in after if key[0] in ("slipstream_slot_predicted_tokens_total", TOKENS_PREDICTED)]
    assert len(predicted) == 3
    assert sum(after[key] - before[key] for key in predicted) == 40, "on one of two slots, and in the server's own sum"


def test_a_stopped_server_has_counters_and_no_gauges_of_its_own(house: Orchestrator) -> None:
    house.start_model("other")
    up = scrape(house)
    house.command("other", "stop")
    down = scrape(house)
    assert counters_of(down, "other") == counters_of(up, "other")
    gone = {name for name, labels in up.values if ("model", "other") in labels} - {name for name, _ in down.values}
    assert "slipstream_slot_busy" not in gone, "those of the other model are still there"
    left = {name for name, labels in down.values if ("model", "other") in labels}
    assert "slipstream_slot_busy" not in left
    assert [name for name in left if name.startswith("llamacpp:") and not name.endswith("_total")] == []
    assert house.metric("slipstream_server_up", model="other") == 0
    assert house.metric("slipstream_server_state", model="other", state="stopped") == 1


def test_requests_are_counted(house: Orchestrator) -> None:
    def count(outcome: str) -> float:
        return house.metric("slipstream_requests_total", model="toy", outcome=outcome) or 0.0

    ok, wrong = count("ok"), count("client_error")
    house.chat("toy").raise_for_status()
    house.chat("alias-of-toy").raise_for_status()
    assert house.chat("toy", **{"speculative.n_max": "many"}).status_code == 400
    assert (count("ok"), count("client_error")) == (ok + 2, wrong + 1)


def test_openmetrics_of_a_patched_and_of_a_stock_server(
    house: Orchestrator, make_orchestrator: MakeOrchestrator, unpatched_server: Path, toys: ToyBox
) -> None:
    stock = make_orchestrator(unpatched_server)
    stock.write_model("toy", toys.pair().path, server=THREADS | {"ctx_size": 2048})
    with running_orchestrator(stock):
        for one in (house, stock):
            one.start_model("toy")
            one.chat("toy").raise_for_status()
            response = one.http.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
            assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            read = read_openmetrics(response.text)  # type: ignore[no-untyped-call]
            families = {family.name: family for family in read}
            assert families["llamacpp:tokens_predicted"].type == "counter"
            assert families["llamacpp:n_tokens_max"].type == "gauge"
        assert families["slipstream_slot_draft_tokens"].samples == []
        assert families["llamacpp:tokens_predicted"].samples[0].value == 8


def test_a_scrape_starts_nothing(house: Orchestrator) -> None:
    house.command("other", "stop")
    scrape(house)
    assert house.view("other")["state"] == "stopped"


def test_build_info_names_pin_and_patches(house: Orchestrator) -> None:
    [(_, labels)] = [key for key in scrape(house).values if key[0] == "slipstream_build_info"]
    assert "11434" in dict(labels)["llama_server"]
