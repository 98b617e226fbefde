"""`slipstream jobs`, and a job as every command shows it that waits for one."""

import io
import json
import threading
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli import job_progress
from orchestrator.cli.invocation import Invocation
from orchestrator.cli.job_progress import JobLiveDisplay, follow_job
from orchestrator.client import Client
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import JobEvent, JobLine, JobProgress, JobView
from orchestrator.units import in_seconds
from tests.unit.api_stub import Answer, ApiStub, Asked, problem
from tests.unit.cli.conftest import Run, cells
from tests.unit.cli.test_terminal import DEADLINE_SECONDS, terminal

EVENTS = "GET /api/jobs/1a/events"
FETCHING = {"phase": "fetching", "file": "a.gguf", "done_bytes": 25_000_000, "total_bytes": 100_000_000}
FAILURE = {"code": "source_gated", "message": "no access to a", "hint": "ask for it", "details": {"log_tail": ["403"]}}


def job_view(state: str = "running", **fields: Any) -> dict[str, Any]:
    return {"id": "1a", "kind": "pull", "subject": "toy", "state": state, "created": 1.0, "runs": 1} | fields


def stream(*events: tuple[str, Any]) -> Answer:
    """Events of a job as the API sends them."""
    text = ""
    for name, data in events:
        number = f"id: {data['number']}\n" if name == "line" else ""
        text += f"{number}event: {name}\ndata: {json.dumps(data)}\n\n"
    return Answer(text=text, kind="text/event-stream")


def line(number: int, text: str) -> tuple[str, dict[str, Any]]:
    return "line", {"number": number, "at": 1.0, "text": text}


def test_ctrl_c_ends_the_waiting_not_the_job(stub: ApiStub) -> None:
    gate = threading.Event()
    began = stream(("job", job_view()), ("progress", FETCHING)).text
    stub.routes[EVENTS] = Answer(text=began, kind="text/event-stream", between=gate)
    with terminal(stub.url, "jobs", "1a", "--follow") as t:
        t.expect("pull toy: running")
        t.interrupt()
        t.expect("`slipstream jobs 1a --cancel`")
        assert t.process.wait(DEADLINE_SECONDS) == 130
    assert stub.hung_up.wait(DEADLINE_SECONDS), "the orchestrator is told that nobody listens"


def test_the_list(stub: ApiStub, run: Run) -> None:
    views = [
        job_view(progress=FETCHING),
        job_view("failed", id="2b", subject="other", error=FAILURE),
        job_view("succeeded", id="3c", kind="verify", subject="the store", result={}),
    ]
    stub.routes["GET /api/jobs"] = Answer({"jobs": views})
    outcome = run("jobs")
    rows = [cells(row) for row in outcome.out.splitlines()[1:]]
    assert [row[:7] for row in rows] == [
        ["1a", "pull", "toy", "running", "fetching", "a.gguf", "25%"],
        ["2b", "pull", "other", "failed", "source_gated", *rows[1][5:7]],
        ["3c", "verify", "the", "store", "succeeded", "-", rows[2][6]],
    ]
    assert [job["id"] for job in run("jobs", "--json").json["jobs"]] == ["1a", "2b", "3c"]
    stub.routes["GET /api/jobs"] = Answer({"jobs": []})
    assert (run("jobs").out, run("jobs").err) == ("", "no job\n")


def test_one_job_with_its_error(stub: ApiStub, run: Run) -> None:
    stub.routes["GET /api/jobs/1a"] = Answer(job_view("failed", error=FAILURE))
    outcome = run("jobs", "1a")
    assert outcome.status == 0
    assert cells(outcome.out.splitlines()[1])[:4] == ["1a", "pull", "toy", "failed"]
    assert outcome.err == "error: no access to a\n  403\nhint: ask for it\n"
    assert run("jobs", "1a", "--json").json["error"]["code"] == "source_gated"


def test_a_cancel(stub: ApiStub, run: Run) -> None:
    stub.routes["DELETE /api/jobs/1a"] = Answer(job_view("cancelled"))
    assert cells(run("jobs", "1a", "--cancel").out.splitlines()[1])[:4] == ["1a", "pull", "toy", "cancelled"]
    assert run("jobs", "1a", "--cancel", "--json").json["state"] == "cancelled"


def test_ctrl_c_while_following_as_json_is_no_success(stub: ApiStub) -> None:
    gate = threading.Event()
    stub.routes[EVENTS] = Answer(text=stream(("job", job_view())).text, kind="text/event-stream", between=gate)
    with terminal(stub.url, "jobs", "1a", "--follow", "--json") as t:
        t.expect('"state": "running"')
        t.interrupt()
        assert t.process.wait(DEADLINE_SECONDS) == 130


def test_a_job_that_is_not_there(stub: ApiStub, run: Run) -> None:
    stub.routes[EVENTS] = problem("not_found", "no job '1a'", 404, hint="the last 200 are kept")
    outcome = run("jobs", "1a", "--follow")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "error: no job '1a'\nhint: the last 200 are kept\n"


@pytest.mark.parametrize("arguments", [["--follow"], ["--cancel"], ["1a", "--follow", "--cancel"]])
def test_wrong_usage(stub: ApiStub, run: Run, arguments: list[str]) -> None:
    assert run("jobs", *arguments).status == 2
    assert stub.asked == []


def test_following_shows_lines_steps_and_the_end(stub: ApiStub, run: Run) -> None:
    stub.routes[EVENTS] = stream(
        ("job", job_view("queued")),
        line(1, "commit abc"),
        ("progress", FETCHING | {"rate_bytes_per_second": 10_500_000.0, "eta_seconds": 7.1}),
        ("progress", FETCHING | {"done_bytes": 26_000_000}),
        ("news", {"of": "a newer version"}),
        ("progress", {"phase": "hashing", "done_bytes": 0}),
        ("end", job_view("succeeded", result={"n": 1})),
    )
    outcome = run("jobs", "1a", "--follow")
    assert outcome.err.splitlines() == [
        "pull toy: queued",
        "commit abc",
        "pull toy: fetching a.gguf, 25.0 MB of 100.0 MB, 10.5 MB/s, 7 s left",
        "pull toy: hashing",
    ]
    assert (outcome.status, outcome.out) == (0, "pull toy succeeded\n")


def test_following_as_json_is_an_object_a_line(stub: ApiStub, run: Run) -> None:
    sent = [("job", job_view()), line(1, "x"), ("progress", FETCHING), ("end", job_view("failed", error=FAILURE))]
    stub.routes[EVENTS] = stream(*sent)
    outcome = run("jobs", "1a", "-f", "--json")
    got = [json.loads(row) for row in outcome.out.splitlines()]
    assert [event["event"] for event in got] == ["job", "line", "progress", "end"]
    assert got[1]["data"] == {"number": 1, "at": 1.0, "text": "x"}
    assert got[3]["data"]["error"] == FAILURE
    assert outcome.status == 1, "it failed"
    assert outcome.err.startswith("error: no access to a\n")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (job_view("failed", error=FAILURE), "no access to a"),
        (job_view("failed", error=FAILURE | {"code": "of_a_newer_version"}), "no access to a"),
        (job_view("cancelled"), "the job 1a (pull toy) is cancelled"),
    ],
)
def test_a_job_that_did_not_succeed_is_an_error(stub: ApiStub, end: dict[str, Any], message: str) -> None:
    stub.routes[EVENTS] = stream(("job", job_view()), ("end", end))
    with Client(stub.url) as client, pytest.raises(SlipstreamError) as caught:
        follow_job(Invocation(client, is_json=True), "1a")
    assert caught.value.message == message


class TestConnectionLost:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_progress, "_RECONNECT_PAUSE_SECONDS", 0.01)

    def test_following_goes_on_after_the_last_line(self, stub: ApiStub, run: Run) -> None:
        answers = [
            stream(("job", job_view()), line(1, "one"), line(2, "two")),
            Answer(text="<html>", status=502, kind="text/html"),
            stream(("job", job_view("queued", runs=1)), line(3, "three"), ("end", job_view("succeeded", runs=2))),
        ]
        stub.routes[EVENTS] = lambda asked: answers[len(stub.asked) - 1]
        outcome = run("jobs", "1a", "--follow")
        assert outcome.status == 0
        assert [row for row in outcome.err.splitlines() if row in ("one", "two", "three")] == ["one", "two", "three"]
        assert outcome.err.count("waiting for the orchestrator to come back") == 1
        assert [asked.headers["last-event-id"] for asked in stub.asked] == ["0", "2", "2"]

    def test_but_not_for_ever(self, stub: ApiStub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_progress, "_RECONNECT_SECONDS", 0.05)

        def once(asked: Asked) -> Answer:
            return stream(("job", job_view())) if len(stub.asked) == 1 else Answer(text="", status=502)

        stub.routes[EVENTS] = once
        outcome = run("jobs", "1a", "--follow")
        assert outcome.status == 1 and "502" in outcome.err

    def test_nobody_there_from_the_beginning_is_said_at_once(self, stub: ApiStub, run: Run) -> None:
        stub.routes[EVENTS] = Answer(text="", status=502)
        assert run("jobs", "1a", "--follow").status == 1
        assert len(stub.asked) == 1


class TestTerminal:
    @pytest.fixture
    def screen(self) -> io.StringIO:
        return io.StringIO()

    @pytest.fixture
    def display(self, stub: ApiStub, screen: io.StringIO) -> JobLiveDisplay:
        with Client(stub.url) as client:
            invocation = Invocation(client, is_json=False)
        invocation.err = Console(file=screen, force_terminal=True, width=160)
        return JobLiveDisplay(invocation)

    def test_a_bar_with_bytes_rate_and_time_left(self, display: JobLiveDisplay, screen: io.StringIO) -> None:
        def shown(event: JobEvent) -> str:
            begin = len(screen.getvalue())
            display.show(event)
            display._progress.refresh()
            return screen.getvalue()[begin:]

        assert "pull toy: queued" in shown(JobEvent("job", JobView.model_validate(job_view("queued"))))
        fetching = JobProgress.model_validate(FETCHING | {"rate_bytes_per_second": 1e7, "eta_seconds": 225.0})
        bar = shown(JobEvent("progress", fetching))
        assert "pull toy: fetching a.gguf" in bar and "━" in bar
        assert "25.0 MB of 100.0 MB, 10.0 MB/s, 3 min 45 s left" in bar
        assert "commit ␛[2J" in shown(JobEvent("line", JobLine(number=1, at=1.0, text="commit \x1b[2J")))
        unknown = shown(JobEvent("progress", JobProgress(phase="grafting", done_bytes=5_000_000)))
        assert "pull toy: grafting" in unknown and "5.0 MB" in unknown and "━" not in unknown
        display.close()

    def test_a_narrow_one_keeps_the_figures_on_one_line(self, stub: ApiStub, screen: io.StringIO) -> None:
        with Client(stub.url) as client:
            invocation = Invocation(client, is_json=False)
        invocation.err = Console(file=screen, force_terminal=True, width=80)
        display = JobLiveDisplay(invocation)
        name = "Qwen3-Next-80B-A3B-Instruct-UD-Q4_K_XL-00001-of-00002.gguf"
        figures = {"rate_bytes_per_second": 1e7, "eta_seconds": 7000.0}
        display.show(JobEvent("job", JobView.model_validate(job_view())))
        display.show(JobEvent("progress", JobProgress.model_validate(FETCHING | figures | {"file": name})))
        begin = len(screen.getvalue())
        display._progress.refresh()
        shown = screen.getvalue()[begin:]
        assert "pull toy: fetching" in shown and "…" in shown and "\n" not in shown
        assert "25.0 MB of 100.0 MB, 10.0 MB/s, 1 h 56 min left" in shown
        display.close()

    def test_a_job_that_ends_before_anything_was_shown(self, display: JobLiveDisplay) -> None:
        display.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (225, "3 min 45 s"), (7500, "2 h 5 min"), (356_400, "4 d 3 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert in_seconds(seconds) == text


def test_error_codes_of_another_version_are_internal() -> None:
    view = JobView.model_validate(job_view("failed", error=FAILURE | {"code": "of_a_newer_version"}))
    assert job_progress.error_of(view).code is Code.INTERNAL
