"""`slipstream events`, `audit` and `clear`."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.api_stub import Answer, ApiStub, problem, server_view
from tests.unit.cli.conftest import Outcome, Run, cells

LOADED = {
    **{"number": 3, "at": 0.0, "model": "toy", "instance": 1, "host": "local", "state": "ready", "why": "loaded"},
    **{"failure": None, "changes": []},
}
OTHER = {"number": 4, "at": 61.0, "model": "other", "instance": None, "host": None, "state": "failed", "why": "it \x1b"}
CALL = {
    **{"number": 7, "at": 0.0, "method": "POST", "path": "/api/servers/toy/stop", "key": "3f79bb7b"},
    **{"client": "127.0.0.1", "dry_run": True, "status": 200, "milliseconds": 812.4, "count": 1},
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are shown in the zone of who reads them."""
    with monkeypatch.context() as m:
        m.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def stream(*events: dict[str, Any]) -> Answer:
    text = "".join(f"event: transition\nid: {e['number']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return Answer(text=text + ": ping\n\nevent: news\ndata: of a newer version\n\n", kind="text/event-stream")


def test_events(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/events"] = stream(LOADED, OTHER)
    outcome = run("events", "--after", "2")
    assert outcome.out.splitlines() == [
        "3  1970-01-01 00:00:00  toy/1 on local: ready: loaded",
        "4  1970-01-01 00:01:01  other: failed: it ␛",
    ]
    assert stub.asked[-1].query == {"after": "2", "follow": "false"}
    assert [json.loads(line) for line in run("events", "toy", "--json").out.splitlines()] == [LOADED]


def test_a_stream_that_ends_while_it_is_followed_is_an_error(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/events"] = stream(LOADED)
    outcome = run("events", "--follow")
    assert (outcome.status, len(outcome.out.splitlines())) == (1, 1)
    assert "shutting down" in outcome.err
    assert stub.asked[-1].query == {"after": "0", "follow": "true"}


def test_a_transition_of_another_shape_is_said(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/events"] = Answer(text="event: transition\ndata: {}\n\n", kind="text/event-stream")
    outcome = run("events")
    assert outcome.status == 1
    assert "another shape" in outcome.err


def test_audit(stub: ApiStub, run: Run) -> None:
    refused = CALL | {
        "number": 8,
        "key": "unknown",
        "status": 401,
        "milliseconds": None,
        "count": 812,
        "dry_run": False,
    }
    cut = CALL | {"number": 6, "status": None, "milliseconds": None, "dry_run": False}
    stub.routes["GET /api/audit"] = Answer({"entries": [refused, CALL, cut]})
    day = ["1970-01-01", "00:00:00"]
    stop = ["127.0.0.1", "POST", "/api/servers/toy/stop"]
    outcome = run("audit", "-n", "3", "--before", "9")
    assert [cells(line) for line in outcome.out.splitlines()[1:]] == [
        ["8", *day, "unknown", *stop, "401", "-", "812"],
        ["7", *day, "3f79bb7b", *stop, "(dry", "run)", "200", "812", "1"],
        ["6", *day, "3f79bb7b", *stop, "-", "-", "1"],
    ]
    assert stub.asked[-1].query == {"limit": "3", "before": "9"}
    assert run("audit", "--json").json == {"entries": [refused, CALL, cut]}
    assert stub.asked[-1].query == {"limit": "50"}


def test_an_empty_audit_log_is_said(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/audit"] = Answer({"entries": []})
    assert run("audit") == Outcome(0, "", "no entry\n")


def test_clear(stub: ApiStub, run: Run) -> None:
    stub.routes["POST /api/servers/toy/clear"] = Answer(server_view(state="stopped"))
    assert run("clear", "toy").out == "toy may be tried again; it is stopped\n"
    stub.routes["POST /api/servers/toy/clear"] = problem("model_not_found", "no model 'toy'", 404)
    assert run("clear", "toy").status == 1
