"""A drafter that works on slot 0 alone, live: the rules as they ship, but nothing waits for minutes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import FAKE_SERVER, REPOSITORY
from tests.support import eventually
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.prometheus import Prometheus, Target, rules_within, running_prometheus
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

ALERT = "SlipstreamSlotWithoutDrafts"
HOLD_SECONDS = 0.5
# What the alert asks for is told in tokens within minutes; a slot as fast as this has them within seconds.
TOKENS_PER_SECOND = 100.0


def slot_counters(slot: int, drafted: float, accepted: float) -> dict[str, float]:
    """What a patched server tells of a slot that drafts and accepts so many tokens a second."""
    grows = {
        "predicted_tokens": TOKENS_PER_SECOND,
        "predicted_seconds": 1.0,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "relaxed_tokens": 0.0,
        "verification_steps": drafted / 3,
    }
    positions = {f'llamacpp:slot_accepted_tokens_per_position_total{{slot="{slot}",position="0"}}': accepted}
    return {f'llamacpp:slot_{name}_total{{slot="{slot}"}}': rate for name, rate in grows.items()} | positions


MODELS: dict[str, dict[str, float]] = {
    "healthy": slot_counters(0, 90, 60) | slot_counters(1, 90, 45),
    "never-accepted": slot_counters(0, 90, 60) | slot_counters(1, 90, 0),
    "never-drafts": slot_counters(0, 90, 60) | slot_counters(1, 0, 0),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    home = tmp_path_factory.mktemp("live-alert")
    made = Orchestrator(home, FAKE_SERVER)
    for name, counters in MODELS.items():
        script: dict[str, Any] = {"slots": 2, "draft_n": 4, "counters": counters}
        write_script(home / f"{name}.gguf", script)
        made.write_model(name, home / f"{name}.gguf", speculation={"type": "draft-mtp", "n_max": 3})
    with running_orchestrator(made):
        yield made


def test_the_alert_fires_and_names_model_and_slot(house: Orchestrator, tmp_path: Path) -> None:
    for name in MODELS:
        house.command(name, "start").raise_for_status()
    rules = rules_within(HOLD_SECONDS, sorted((REPOSITORY / "docker/prometheus/rules").glob("*.yml")), tmp_path)
    address = house.base_url.removeprefix("http://")
    prometheus = Prometheus(tmp_path / "prometheus", [Target("slipstream", address)], rules)

    def firing() -> set[tuple[str, str]]:
        found = [alert["labels"] for alert in prometheus.alerts() if alert["state"] == "firing"]
        return {(labels["model"], labels["slot"]) for labels in found if labels["alertname"] == ALERT}

    with running_prometheus(prometheus):
        expected = {("never-accepted", "1"), ("never-drafts", "1")}
        eventually(lambda: firing() >= expected, f"{ALERT} fires for both forms of the fault", 30.0)
        prometheus.scraped("slipstream")
        assert firing() == expected, "and for nobody else"
        [alert] = [
            a
            for a in prometheus.alerts()
            if a["labels"]["alertname"] == ALERT and a["labels"]["model"] == "never-drafts"
        ]
        assert "never-drafts" in alert["annotations"]["summary"] and "slot 1" in alert["annotations"]["summary"]
        _, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert anchor == ALERT.lower()
