"""Every query of every dashboard against what the answers of the known traffic said."""

from dataclasses import replace

import pytest

from dashboards import Asked, panels, queries, substitute
from dashboards.exporters import EXPORTERS, PROMETHEUS
from tests.integration.observability.figures import Values, differences, labelled
from tests.integration.observability.known import CATALOGUE, KINDS, Known
from tests.integration.observability.machine import NODE, NODE_JOB, OTHERS, OTHERS_JOB
from tests.integration.observability.panels import EXPECTED
from tests.integration.observability.places import LOCAL, Key
from tests.support.promql import asked, selectors

pytestmark = pytest.mark.integration

TOLERANCE = 0.01
# Exporters whose hardware or engine is not here: docker/dashboards/exporters.py lists what they export.
ABSENT = frozenset().union(*(EXPORTERS[job] for job in ("cadvisor", "nvidia", "rocm")))


def key(asked: Asked) -> Key:
    return Key(asked.dashboard, asked.panel, asked.ref_id)


ASKED = {key(asked): asked.expr for asked in panels()}
SPECULATION = {place: expr for place, expr in ASKED.items() if place.dashboard == "speculation"}


def name(place: Key) -> str:
    return f"{place.dashboard}: {place.panel}: {place.ref_id}"


def answer(known: Known, expr: str, **chosen: str) -> Values:
    """Without the labels that a scrape adds to every series."""
    window = f"{known.window_seconds}s"
    filled = substitute(expr, {"__rate_interval": window, "__range": window, "__interval": window} | chosen)
    found = known.prometheus.query(filled, known.at)
    labels = [{k: v for k, v in sample.labels.items() if k not in ("job", "instance")} for sample in found]
    values = {frozenset(its.items()): sample.value for its, sample in zip(labels, found, strict=True)}
    assert len(values) == len(found), "no two samples with the same labels"
    return values


def has_node_exporter(known: Known) -> bool:
    return NODE_JOB in {target.job for target in known.prometheus.targets}


def absent(known: Known) -> frozenset[str]:
    """What may be asked for although nobody exports it here."""
    return ABSENT | PROMETHEUS | (frozenset() if has_node_exporter(known) else EXPORTERS["node"])


def test_every_panel_has_an_expectation_and_every_expectation_a_panel() -> None:
    assert len(ASKED) == len(panels()), "no two queries have the same place"
    checked = EXPECTED.keys() | NODE.keys() | OTHERS.keys()
    assert ASKED.keys() - checked == set(), "panels that nobody checks"
    assert checked - ASKED.keys() == set(), "checks of panels that are gone"


@pytest.mark.parametrize("place", EXPECTED, ids=name)
def test_a_panel_shows_what_the_answers_said(known: Known, place: Key) -> None:
    assert differences(answer(known, ASKED[place]), EXPECTED[place](known), TOLERANCE) == []


@pytest.mark.parametrize("place", SPECULATION, ids=name)
@pytest.mark.parametrize("slot", [".*", "0", "1"])
def test_variables_choose_models_and_slots(known: Known, place: Key, slot: str) -> None:
    expr = SPECULATION[place]
    chosen = {"model": "strict", "spec_type": "draft-mtp", "slot": slot}
    is_by_slot = "$slot" in expr
    if slot != ".*" and not is_by_slot:
        return
    answers = [a for a in known.answers if a.model == "strict" and (slot == ".*" or str(a.slot) == slot)]
    of_others = [labelled(model=model) for model in CATALOGUE if model != "strict"]
    of_others += [labelled(slot=other) for other in range(2) if is_by_slot and slot not in (".*", str(other))]
    every = EXPECTED[place](replace(known, answers=answers))
    expected = {labels: value for labels, value in every.items() if not any(other <= labels for other in of_others)}
    assert differences(answer(known, expr, **chosen), expected, TOLERANCE) == []


@pytest.mark.parametrize("place", NODE, ids=name)
def test_the_machine_is_as_its_kernel_tells(known: Known, place: Key) -> None:
    if not has_node_exporter(known):
        pytest.skip("NOT TESTED: there is no `prometheus-node-exporter`. It is in the Debian package of that name.")
    found, expected = answer(known, ASKED[place]), NODE[place]()
    assert expected.keys() <= found.keys(), found
    assert all(dict(labels)["host"] == LOCAL for labels in found)
    wrong = {labels: found[labels] for labels, (low, high) in expected.items() if not low <= found[labels] <= high}
    assert wrong == {}, expected


@pytest.mark.parametrize("place", OTHERS, ids=name)
def test_pages_of_other_exporters_are_worked_out(known: Known, place: Key) -> None:
    # Their counters never rest: the window has samples at both its ends.
    found = answer(known, ASKED[place], __rate_interval="5s")
    assert differences(found, OTHERS[place](known), TOLERANCE) == []


@pytest.mark.parametrize("query", [q for q in queries() if q.panel.startswith("variable ")], ids=lambda q: name(key(q)))
def test_variables_list_what_there_is(known: Known, query: Asked) -> None:
    label = query.panel.removeprefix("variable ")
    found = {dict(labels)[label] for labels in answer(known, query.expr)}
    everything = {
        "model": set(CATALOGUE if "server_up" in query.expr else KINDS),
        "slot": {"0", "1"},
        "spec_type": {kind.spec_type for kind in KINDS.values()},
        "host": {LOCAL},
    }
    assert found == everything[label]


def test_annotations_stand_where_the_events_were(known: Known) -> None:
    marks = {q.expr for q in queries() if q.panel.startswith("annotation ") and "timestamp" in q.expr}
    found = {labels: value for expr in marks for labels, value in answer(known, expr).items()}
    last = {(event["model"], event["state"]): 1000 * event["at"] for event in known.events}
    expected = {labelled(model=model, event="loaded"): last[model, "ready"] for model in KINDS}
    expected[labelled(model="strict", event="ended")] = last["strict", "gone"]
    expected[labelled(model="strict", event="flags")] = last["strict", "ready"]
    failures = [event for event in known.events if event["failure"] and event["state"] != "gone"]
    assert {event["model"] for event in failures} == {"plain"}
    expected[labelled(model="plain", event="failed")] = 1000 * failures[-1]["at"]
    assert {labels - {("__name__", "")}: round(value) for labels, value in found.items()} == {
        labels: round(value) for labels, value in expected.items()
    }


def test_everything_that_is_asked_for_is_in_a_real_scrape(known: Known) -> None:
    names = {selector.name for _, expr in asked() for selector in selectors(expr)}
    every = known.prometheus.query('last_over_time({__name__=~".+"}[30s])', known.at)
    scraped = {sample.name for sample in every if sample.labels.get("job") != OTHERS_JOB}
    assert len(scraped) > 50
    assert names - scraped - absent(known) == set(), "asked for, and nobody exports it"


def test_everything_is_asked_for_by_labels_that_it_has(known: Known) -> None:
    every = known.prometheus.query('last_over_time({__name__=~".+"}[30s])', known.at)
    labels: dict[str, set[str]] = {}
    for sample in every:
        labels.setdefault(sample.name, set()).update(sample.labels)
    wrong = {
        (where, selector.name, label)
        for where, expr in asked()
        for selector in selectors(expr)
        for label in selector.labels - labels.get(selector.name, set())
        if selector.name not in PROMETHEUS and selector.name in labels
    }
    assert wrong == set()
