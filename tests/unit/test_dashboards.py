"""The dashboards' JSON, their queries and the rules, against each other and against docs/metrics.md."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dashboards import DASHBOARDS, FOLDER, panels, render, substitute
from dashboards.__main__ import stale, write
from dashboards.exporters import EXPORTERS, FOREIGN
from dashboards.model import DATASOURCE
from dashboards.overview import STATES
from dashboards.promql import growth, mean, quantile, quotient
from orchestrator.schemas import ServerState
from tests import REPOSITORY
from tests.support.promql import asked, documented, family, prometheus_configuration, rules, selectors, unguarded

GRAFANA = REPOSITORY / "docker" / "grafana"
JSON = {dashboard.uid: json.loads(render(dashboard)) for dashboard in DASHBOARDS}
EVERY_PANEL = [panel for found in JSON.values() for panel in found["panels"] if panel["type"] != "row"]


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def heading_anchors(page: str) -> set[str]:
    text = (REPOSITORY / "docs" / page).read_text()
    return {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (\w+)$", text, re.M)}


def test_the_files_are_what_the_generator_makes() -> None:
    assert stale(FOLDER) == [], "write them with: make dashboards"


def test_a_changed_a_missing_and_a_foreign_file_are_told(tmp_path: Path) -> None:
    write(tmp_path)
    assert stale(tmp_path) == []
    changed, missing, foreign = tmp_path / "latency.json", tmp_path / "machines.json", tmp_path / "mine.json"
    changed.write_text(changed.read_text().replace("Latency", "Late"))
    missing.unlink()
    foreign.write_text("{}")
    assert stale(tmp_path) == [changed, missing, foreign]
    write(tmp_path)
    assert stale(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{uid}.json" for uid in JSON)


def test_every_series_that_is_asked_for_exists() -> None:
    ours, recorded = documented(), {rule.name for rule in rules() if not rule.is_alert}
    unknown = {
        f"{where}: {selector.name}"
        for where, expr in asked()
        for selector in selectors(expr)
        if family(selector.name, ours) not in ours and selector.name not in recorded | FOREIGN
    }
    assert unknown == set()


def test_our_series_are_chosen_by_labels_that_they_have() -> None:
    ours = documented()
    wrong = {
        f"{where}: {selector.name} has no {label}"
        for where, expr in asked()
        for selector in selectors(expr)
        for label in selector.labels - ours.get(family(selector.name, ours), selector.labels)
    }
    assert wrong == set()


def test_no_query_can_answer_nan() -> None:
    assert {where: parts for where, expr in asked() if (parts := unguarded(expr))} == {}


def test_the_check_for_nan_knows_what_it_looks_for() -> None:
    assert unguarded("a / sum(b)") == ["a / sum(b)"]
    assert unguarded("a / (b > 0) + c / 100 + a / (d > 0.001)") == []
    assert unguarded("a / (b > -1)")
    assert unguarded("a / (b >= 0)")
    assert unguarded("histogram_quantile(0.9, a) > 1")
    assert unguarded("histogram_quantile(0.9, a) >= 0") == []


def test_positions_are_never_summed_into_tokens() -> None:
    series = "slipstream_slot_accepted_tokens_per_position_total"
    by = re.compile(rf"by \([^)]*\bposition\) \((?:rate|increase)\({series}\b")
    assert {where for where, expr in asked() if expr.count(series) != len(by.findall(expr))} == set()
    assert sum(expr.count(series) for _, expr in asked()) > 2


def test_no_name_of_an_exporter_is_on_the_list_in_vain() -> None:
    used = {selector.name for _, expr in asked() for selector in selectors(expr)}
    assert FOREIGN - used == set()


def test_every_recorded_series_is_named_level_metric_operation() -> None:
    names = [rule.name for rule in rules() if not rule.is_alert]
    assert all(re.fullmatch(r"model(_slot)?(_position)?:slipstream_[a-z_]+:[a-z0-9_]+", name) for name in names)
    assert max(Counter(names).values()) == 1


@pytest.mark.parametrize("rule", [rule for rule in rules() if rule.is_alert], ids=lambda rule: rule.name)
def test_every_alert_has_a_runbook_and_words(rule: Any) -> None:
    page, _, anchor = rule.annotations["runbook_url"].partition("#")
    assert page == "docs/alerts.md"
    assert anchor == rule.name.lower()
    assert anchor in heading_anchors("alerts.md")
    assert rule.annotations["summary"]
    assert rule.annotations["description"]


def test_the_page_on_alerts_has_a_section_for_nothing_else() -> None:
    named = {anchor for anchor in heading_anchors("alerts.md") if anchor.startswith("slipstream")}
    assert named == {rule.name.lower() for rule in rules() if rule.is_alert}


def test_every_rule_and_dashboard_is_documented() -> None:
    page = (REPOSITORY / "docs" / "dashboards.md").read_text()
    recorded = {rule.name.partition(":")[2] for rule in rules() if not rule.is_alert}
    assert {name for name in recorded if f"`{name}`" not in page} == set()
    assert {dashboard.title for dashboard in DASHBOARDS if f"**{dashboard.title}**" not in page} == set()


def test_every_panel_has_a_name_of_its_own_and_says_what_it_shows() -> None:
    assert max(Counter((query.dashboard, query.panel, query.ref_id) for query in panels()).values()) == 1
    assert {panel["title"] for panel in EVERY_PANEL if len(panel["description"].split()) < 2} == set()


def test_what_is_not_there_is_said_in_words() -> None:
    assert {panel["title"] for panel in EVERY_PANEL if not panel["fieldConfig"]["defaults"]["noValue"]} == set()


def test_every_panel_but_a_heatmap_has_a_unit() -> None:
    without = {panel["title"] for panel in EVERY_PANEL if "unit" not in panel["fieldConfig"]["defaults"]}
    assert without == {panel["title"] for panel in EVERY_PANEL if panel["type"] == "heatmap"}


@pytest.mark.parametrize("uid", JSON)
def test_panels_neither_overlap_nor_leave_the_grid(uid: str) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in JSON[uid]["panels"]:
        place = panel["gridPos"]
        taken.update(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
    assert max(taken.values()) == 1
    assert {x for x, _ in taken} == set(range(24))
    ids = [panel["id"] for panel in JSON[uid]["panels"]]
    assert len(ids) == len(set(ids))


def test_everything_asks_the_data_source_that_is_provisioned() -> None:
    provisioned = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"][0]
    scraped = prometheus_configuration("prometheus.yml")["global"]
    assert {"type": provisioned["type"], "uid": provisioned["uid"]} == DATASOURCE
    assert provisioned["jsonData"]["timeInterval"] == scraped["scrape_interval"]

    def sources(part: Any) -> list[Any]:
        if isinstance(part, dict):
            return [v for k, v in part.items() if k == "datasource"] + [s for v in part.values() for s in sources(v)]
        return [s for v in part for s in sources(v)] if isinstance(part, list) else []

    assert all(source == DATASOURCE for found in JSON.values() for source in sources(found))


def test_dashboards_are_provisioned_read_only_and_home_is_one_of_them() -> None:
    provider = load(GRAFANA / "provisioning" / "dashboards" / "slipstream.yml")["providers"][0]
    assert provider["allowUiUpdates"] is False
    assert all(found["editable"] is False for found in JSON.values())
    grafana = load(REPOSITORY / "compose.yaml")["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./docker/grafana/dashboards"] == provider["options"]["path"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert home.name in {path.name for path in FOLDER.iterdir()}


def test_every_state_of_a_server_has_its_word_and_colour() -> None:
    assert [word for word, _ in STATES.values()] == [state.value for state in ServerState]
    [timeline] = [panel for panel in EVERY_PANEL if panel["type"] == "state-timeline"]
    # Of no value it says nothing: Grafana would draw a gap as a state.
    [mapping] = timeline["fieldConfig"]["defaults"]["mappings"]
    assert [option["text"] for option in mapping["options"].values()] == [state.value for state in ServerState]


def test_slots_and_positions_stand_in_the_order_of_their_numbers() -> None:
    by_title = {panel["title"]: panel["transformations"] for panel in EVERY_PANEL}
    # Collator with digits as numbers: createFieldsOrdererAuto of Grafana's order.ts.
    [join, organize] = by_title["Acceptance by position"]
    assert (join["id"], join["options"]["byField"]) == ("joinByField", "Time")
    assert organize["options"]["orderByMode"] == "auto"
    assert [(by["type"], by["name"]) for by in organize["options"]["orderBy"]] == [
        ("label", "model"),
        ("label", "position"),
    ]
    [_, number, *sorts, _] = by_title["Slots in the selected range"]
    assert number["options"]["conversions"] == [{"targetField": "slot", "destinationType": "number"}]
    assert [sort["options"]["sort"][0]["field"] for sort in sorts] == ["slot", "spec_type", "model"]
    assert {variable["sort"] for found in JSON.values() for variable in found["templating"]["list"]} == {7}


def test_rates_are_taken_over_what_grafana_derives_or_over_the_whole_range() -> None:
    windows = {window for query in panels() for window in re.findall(r"\[(.*?)\]", query.expr)}
    assert windows <= {"$__rate_interval", "$__range", "1h"}


def test_machines_are_asked_no_faster_than_their_exporters_are() -> None:
    jobs = {job["job_name"]: job for job in prometheus_configuration("prometheus.yml")["scrape_configs"]}
    interval = {jobs[job]["scrape_interval"] for job in EXPORTERS}
    targets = [target for panel in EVERY_PANEL for target in panel["targets"]]
    steps = {
        target["interval"]
        for target in targets
        if any(
            selector.name in names for selector in selectors(substitute(target["expr"])) for names in EXPORTERS.values()
        )
    }
    assert steps == interval


def test_with_keys_prometheus_asks_for_the_same_with_a_key() -> None:
    plain, keyed = prometheus_configuration("prometheus.yml"), prometheus_configuration("prometheus.keys.yml")
    ours = keyed["scrape_configs"][0]
    assert ours.pop("authorization") == {"credentials_file": "/run/secrets/metrics-key"}
    assert keyed == plain


def test_pieces_of_promql_are_guarded() -> None:
    assert quotient("a", "b") == "a / (b > 0)"
    assert mean("h", "model", 'x="1"', "5m").endswith('/ (sum by (model) (rate(h_count{x="1"}[5m])) > 0)')
    assert (
        quantile(0.9, "h", "", 'x="1"', "5m") == 'histogram_quantile(0.9, sum by (le) (rate(h_bucket{x="1"}[5m]))) >= 0'
    )
    assert growth("c_total", "kind", "", "5m") == (
        "sum by (kind) ((c_total{} unless last_over_time(c_total{}[1h] offset 5m)) or increase(c_total{}[5m]))"
    )


def test_variables_are_filled_in() -> None:
    expr = 'rate(a{model=~"$model", host=~"${host}"}[$__rate_interval]) + increase(b[$__range])'
    assert substitute(expr) == 'rate(a{model=~".*", host=~".*"}[1m]) + increase(b[3600s])'
    assert substitute(expr, {"model": "m|n", "__range": "5m"}) == (
        'rate(a{model=~"m|n", host=~".*"}[1m]) + increase(b[5m])'
    )
