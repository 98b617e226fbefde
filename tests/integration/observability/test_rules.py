"""Every recording rule and every alert against what the answers of the known traffic said."""

from contextlib import suppress

import pytest
from ruamel.yaml import YAML

from tests.integration.observability.conftest import RULES
from tests.integration.observability.figures import Labels, Values, differences
from tests.integration.observability.known import Known
from tests.integration.observability.rules import RECORDED
from tests.support import eventually
from tests.support.prometheus import Sample

pytestmark = pytest.mark.integration

TOLERANCE = 0.01


def rules() -> list[dict[str, str]]:
    files = sorted(RULES.glob("*.yml"))
    groups = [group for file in files for group in YAML(typ="safe").load(file)["groups"]]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}
RECORDING = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def as_values(found: list[Sample]) -> Values:
    values = {frozenset(sample.labels.items()): sample.value for sample in found}
    assert len(values) == len(found), "no two samples with the same labels"
    return values


def test_every_recording_rule_has_an_expectation_and_every_expectation_a_rule() -> None:
    assert len(RECORDING) == len([rule for rule in rules() if "record" in rule]), "no name is recorded twice"
    assert RECORDING.keys() == RECORDED.keys()


def test_recorded_series_are_what_the_answers_said(known: Known) -> None:
    def wrong() -> list[str]:
        return [
            f"{record}: {difference}"
            for record, expect in RECORDED.items()
            for difference in differences(as_values(known.prometheus.query(record)), expect(known), TOLERANCE)
        ]

    # Rules that read others follow an evaluation later.
    with suppress(TimeoutError):
        eventually(lambda: not wrong(), "recorded series are right", 5.0)
    assert wrong() == []


@pytest.mark.parametrize("record", RECORDED)
def test_a_rule_as_it_is_written_is_what_the_answers_said(known: Known, record: str) -> None:
    found = as_values(known.prometheus.query(RECORDING[record], known.at))
    assert differences(found, RECORDED[record](known), TOLERANCE) == []


@pytest.mark.parametrize("alert", ALERTS)
def test_no_alert_has_anything_to_say(known: Known, alert: str) -> None:
    assert known.prometheus.query(ALERTS[alert], known.at) == []


def test_every_rule_is_evaluated_without_an_error(known: Known) -> None:
    found = [rule for group in known.prometheus.rule_groups() for rule in group["rules"]]
    assert {rule["name"] for rule in found} == RECORDING.keys() | ALERTS.keys()
    assert [
        (rule["name"], rule["lastError"]) for rule in found if rule.get("lastError") or rule["health"] != "ok"
    ] == []


def test_the_check_can_fail(known: Known) -> None:
    record = "model_slot:slipstream_acceptance:ratio_rate5m"
    expected = RECORDED[record](known)
    one: Labels = next(iter(expected))
    found = as_values(known.prometheus.query(record, known.at))
    assert differences(found, expected | {one: 1.02 * expected[one]}, TOLERANCE)
    assert differences(found, {k: v for k, v in expected.items() if k != one}, TOLERANCE)
    assert differences(found, expected | {one | {("slot", "9")}: 1.0}, TOLERANCE)
    slots = {value for labels, value in expected.items() if ("model", "strict") in labels}
    assert len(slots) == 2, "the slots differ, so that one cannot stand for the other"
