"""What is shown of a model, and which buttons it has."""

from dataclasses import replace

import pytest

from orchestrator.page.rows import Row, age, counts
from orchestrator.schemas import Desired, Failure, Hazard, JobProgress, JobState, JobView, Quarantine, ServerState
from tests.unit.page.made import NOW, model, row, server

PULL = JobView(id="1", kind="pull", subject="a", state=JobState.RUNNING, created=NOW)


def labels(shown: Row) -> list[str]:
    return [action.label for action in shown.actions]


@pytest.mark.parametrize(
    "state, expected",
    [
        (ServerState.STOPPED, ["Start", "Swap in"]),
        (ServerState.FAILED, ["Start", "Swap in"]),
        (ServerState.LOADING, ["Stop"]),
        (ServerState.WARMING, ["Stop"]),
        (ServerState.READY, ["Restart", "Stop"]),
        (ServerState.DRAINING, ["Start"]),
        (ServerState.STOPPING, ["Start"]),
    ],
)
def test_buttons_fit_the_state(state: ServerState, expected: list[str]) -> None:
    assert labels(row("a", state)) == expected


def test_a_swap_needs_something_to_swap_out_and_asks_first() -> None:
    alone = replace(row("a", ServerState.STOPPED), others_run=False)
    assert labels(alone) == ["Start"]
    start, swap = row("a", ServerState.STOPPED).actions
    assert (start.call, start.asks) == ("POST api/servers/a/start", False)
    assert (swap.call, swap.body, swap.asks) == ("POST api/swap", {"start": "a"}, True)


def test_a_model_without_its_files_can_be_pulled_once() -> None:
    absent = Row(server("a", ServerState.STOPPED), model("a", ("a.gguf",)), now=NOW)
    assert [action.call for action in absent.actions] == ["POST api/models/a/pull"]
    assert [remark.text for remark in absent.remarks] == ["Not on disk: a.gguf."]
    assert labels(replace(absent, pull=PULL)) == []
    half = JobProgress(phase="fetching", done_bytes=5, total_bytes=10)
    [remark] = replace(absent, pull=PULL.model_copy(update={"progress": half})).remarks
    assert remark.text == "Its files are being brought: fetching, 50%."


def test_one_that_rests_and_is_wanted_can_be_cleared_started_or_given_up() -> None:
    failure = Failure(reason="exited", message="llama-server ended with status 1")
    shown = row(
        "a",
        ServerState.FAILED,
        desired=Desired.RUNNING,
        failure=failure,
        quarantine=Quarantine(until=NOW + 18, strikes=2),
    )
    assert labels(shown) == ["Clear quarantine", "Start", "Swap in", "Stop"]
    assert [remark.text for remark in shown.remarks] == [
        "llama-server ended with status 1",
        "In quarantine for 18 s more, as it failed 2 times in a row.",
    ]


def test_one_whose_model_file_is_gone_can_only_be_stopped() -> None:
    shown = Row(server("a", ServerState.READY), None, now=NOW)
    assert labels(shown) == ["Stop"]
    assert "Its model file is gone." in [remark.text for remark in shown.remarks]


@pytest.mark.parametrize(
    "seconds, expected, words, share",
    [
        (3.0, 8.0, "3 s of about 8 s: asked to start", 0.375),
        (12.0, 8.0, "12 s, 8 s expected: asked to start", 0.99),
        (3.0, None, "3 s: asked to start", None),
    ],
)
def test_a_start_tells_how_far_it_is(seconds: float, expected: float | None, words: str, share: float | None) -> None:
    load = row("a", ServerState.LOADING, loading_seconds=seconds, expected_load_seconds=expected).load
    assert load is not None and (load.words, load.share) == (words, share)
    assert row("a", ServerState.READY).load is None


def test_why_requests_wait_is_said() -> None:
    waits = row("a", ServerState.STOPPED, waiting=1, waits_for="'b' has to end first")
    assert [remark.text for remark in waits.remarks] == ["1 request waits: 'b' has to end first."]


def test_hazards_that_are_provided_for_do_not_cry() -> None:
    handled, refusing = (Hazard(id=i, message=f"about {i}", refuses=i == "b") for i in ("a", "b"))
    shown = row("a", ServerState.READY, hazards=(handled, refusing))
    assert [(remark.tone, remark.text) for remark in shown.remarks] == [
        ("error", "about b"),
        ("faint", "1 known hazard is provided for, see its details."),
    ]
    assert {("Hazard a", "about a"), ("Hazard b", "about b")} <= set(shown.details)


def test_states_are_counted_the_most_telling_first() -> None:
    rows = [row("a", s) for s in (ServerState.STOPPED, ServerState.READY, ServerState.STOPPED, ServerState.FAILED)]
    assert counts(rows) == [("ready", 1), ("failed", 1), ("stopped", 2)]


@pytest.mark.parametrize(
    "seconds, words",
    [(-5, "0 s"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (1e6, "11 d")],
)
def test_ages_are_coarse(seconds: float, words: str) -> None:
    assert age(NOW - seconds, NOW) == words
