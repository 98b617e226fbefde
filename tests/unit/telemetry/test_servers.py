import re

from orchestrator.errors import Code
from orchestrator.telemetry.servers import FAILURE_REASONS, ServerCollector, ServerStatus
from tests import REPOSITORY
from tests.unit.telemetry.exposed import series, values


def test_the_state_of_one_that_serves() -> None:
    status = ServerStatus("m", "ready", True, starts=3, start_seconds=0.5, host="far", spec_type="draft-mtp")
    found = values(ServerCollector([status]).collect())
    failures = {key: value for key, value in found.items() if key[0] == "slipstream_server_failures_total"}
    assert {key: value for key, value in found.items() if key not in failures} == {
        series("slipstream_server_up", model="m"): 1,
        series("slipstream_server_state", model="m", state="ready"): 1,
        series("slipstream_server_info", model="m", host="far", spec_type="draft-mtp"): 1,
        series("slipstream_server_restarts_total", model="m"): 2,
        series("slipstream_server_start_seconds", model="m"): 0.5,
    }
    assert failures == {
        series("slipstream_server_failures_total", model="m", reason=reason): 0 for reason in FAILURE_REASONS
    }


def test_one_that_never_ran_has_neither_start_time_nor_failures_nor_info() -> None:
    found = values(ServerCollector([ServerStatus("m", "stopped", False)]).collect())
    assert found == {
        series("slipstream_server_up", model="m"): 0,
        series("slipstream_server_state", model="m", state="stopped"): 1,
        series("slipstream_server_restarts_total", model="m"): 0,
    }


def test_failures_are_counted_by_reason_and_any_reason_is_shown() -> None:
    status = ServerStatus("m", "failed", False, starts=3, failures={"out_of_memory": 2, "docker_failed": 1})
    found = values(ServerCollector([status]).collect())
    reasons = {dict(labels)["reason"]: v for (name, labels), v in found.items() if name.endswith("failures_total")}
    assert {reason for reason, value in reasons.items() if value} == {"out_of_memory", "docker_failed"}
    assert (reasons["out_of_memory"], reasons["docker_failed"], reasons["killed"]) == (2, 1, 0)


def test_every_error_of_a_driver_is_a_known_reason_and_every_reason_is_in_the_document() -> None:
    drivers = (REPOSITORY / "orchestrator/servers/drivers").glob("*.py")
    errors = {str(Code[name]) for driver in drivers for name in re.findall(r"Code\.(\w+)", driver.read_text())}
    # Of a place that cannot be planned, and of a server that is asked before it listens.
    assert errors - {Code.INVALID_MODEL_FILE, Code.SERVER_STOPPED} <= set(FAILURE_REASONS)
    told = re.findall(r"`(\w+)`", (REPOSITORY / "docs/lifecycle.md").read_text().partition("## Failures")[2])
    assert set(FAILURE_REASONS) <= set(told)
