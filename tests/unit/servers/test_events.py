from typing import Any

import pytest

from orchestrator.servers.events import Events


@pytest.mark.parametrize(
    "state, fields, expected",
    [
        ("ready", {}, {"loaded"}),
        ("ready", {"changes": ("ctx-size",)}, {"loaded", "flags"}),
        ("gone", {}, {"ended"}),
        ("gone", {"failure": "killed"}, set()),
        ("stopping", {"failure": "killed"}, {"failed"}),
        ("stopping", {}, set()),
        ("loading", {}, set()),
    ],
)
def test_what_a_transition_is_for_dashboards(state: str, fields: dict[str, Any], expected: set[str]) -> None:
    events = Events()
    told = events.add("m", state, "because", **fields)
    assert events.last == {("m", event): told.at for event in expected}


def test_the_last_time_counts_until_the_model_is_gone() -> None:
    events = Events()
    first = events.add("m", "ready", "because").at
    events.add("other", "ready", "because")
    again = events.add("m", "ready", "because").at
    assert again >= first and events.last["m", "loaded"] == again
    events.keep_only({"other"})
    assert {model for model, _ in events.last} == {"other"}
