"""The child's side, as a program of its own and as an object."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs import child
from orchestrator.jobs.child import Reporter
from orchestrator.jobs.events import DownloadEvent, ErrorEvent, ResultEvent, read_event
from tests import REPOSITORY
from tests.unit.jobs.kinds import MODULE

Events = list[dict[str, Any]]


def run(*steps: list[Any], result: Any = None) -> tuple[Events, str]:
    """Events and stderr of one run of the work."""
    request = {"steps": steps, "result": result or {}}
    argv = [sys.executable, "-P", "-m", MODULE]
    done = subprocess.run(argv, input=json.dumps(request).encode(), capture_output=True, cwd=REPOSITORY, timeout=20)
    lines = done.stdout.splitlines()
    for line in lines:
        read_event(line)
    return [json.loads(line) for line in lines], done.stderr.decode()


def test_a_result_is_the_last_event() -> None:
    events, _ = run(["phase", "fetching", 10, "a.gguf"], ["advance", 10], ["line", "one\ntwo"], result={"a": [1, None]})
    assert events == [
        {"event": "phase", "phase": "fetching", "total_bytes": 10, "file": "a.gguf", "done_bytes": 0},
        {"event": "advance", "done_bytes": 10},
        {"event": "line", "text": "one"},
        {"event": "line", "text": "two"},
        {"event": "result", "result": {"a": [1, None]}},
    ]


def test_an_error_keeps_code_hint_and_details() -> None:
    events, stderr = run(["fail", "source_gated", "no access to x", "ask for it", {"url": "u"}])
    error = {"code": "source_gated", "message": "no access to x", "hint": "ask for it", "details": {"url": "u"}}
    assert events == [{"event": "error", "error": error}]
    assert stderr == ""


def test_a_bug_is_told_without_its_details() -> None:
    (event,), stderr = run(["crash", "the secret is 42"])
    assert event["error"]["code"] == "internal"
    assert "42" not in json.dumps(event)
    assert "RuntimeError: the secret is 42" in stderr


def test_a_full_disk_has_its_own_code() -> None:
    (event,), _ = run(["fill_the_disk"])
    assert event["error"]["code"] == "disk_full"


def test_prints_do_not_disturb_the_events() -> None:
    events, stderr = run(["print", "hello"], ["line", "x"])
    assert [event["event"] for event in events] == ["line", "result"]
    assert stderr == "hello\n"


def test_a_name_that_is_no_utf_8_is_shown_all_the_same() -> None:
    events, _ = run(["line", "a\udcffb"])
    assert events[0]["text"] == "a?b"


@pytest.mark.parametrize("result", [{"x": float("nan")}, {"x": object()}])
def test_a_result_that_is_no_json_is_a_bug(result: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class NoInput:
        buffer = type("Buffer", (), {"read": staticmethod(lambda: b"{}")})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", NoInput)
        outcome = child._outcome(lambda request, reporter: {"x": result["x"]}, Reporter(lambda event: None))
    assert outcome["error"]["code"] == "internal"
    assert "Traceback" in capsys.readouterr().err


def test_details_may_hold_what_is_no_json() -> None:
    failure = child._failure(SlipstreamError(Code.DISK_FULL, "full", details={"path": Path("x")}))
    assert isinstance(read_event(json.dumps(failure).encode()), ErrorEvent)


class TestReporter:
    @pytest.fixture
    def events(self) -> Events:
        return []

    @pytest.fixture
    def reporter(self, events: Events) -> Reporter:
        return Reporter(events.append)

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        return now

    def test_about_five_a_second_are_sent(self, reporter: Reporter, events: Events, clock: list[float]) -> None:
        reporter.phase("fetching", 10_000)
        for done in range(1, 1001):
            clock[0] += 0.002
            reporter.advance(done)
        advances = [event["done_bytes"] for event in events[1:]]
        assert 8 <= len(advances) <= 10
        assert advances == sorted(advances)

    def test_the_end_of_a_phase_is_always_sent_and_once(
        self, reporter: Reporter, events: Events, clock: list[float]
    ) -> None:
        reporter.phase("fetching", 10)
        for done in (3, 10, 10, 10):
            reporter.advance(done)
        assert events[1:] == [{"event": "advance", "done_bytes": 10}]

    def test_downloads_are_counted_by_source_and_the_rest_is_sent_at_the_end(
        self, reporter: Reporter, events: Events, clock: list[float]
    ) -> None:
        for _ in range(1000):
            clock[0] += 0.002
            reporter.downloaded("hf", 3)
            reporter.downloaded("url", 0)
        reporter.downloaded("url", 5)
        assert 8 <= len(events) <= 11
        reporter.flush()
        reporter.flush()
        assert {event["source"] for event in events} == {"hf", "url"}
        counted = {source: sum(e["count_bytes"] for e in events if e["source"] == source) for source in ("hf", "url")}
        assert counted == {"hf": 3000, "url": 5}
        assert read_event(json.dumps(events[0]).encode()) == DownloadEvent.model_validate(events[0])

    def test_threads_do_not_mix_their_events(self, reporter: Reporter, events: Events) -> None:
        reporter.phase("fetching", 8_000)
        threads = [threading.Thread(target=reporter.line, args=("x\n" * 500,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(events) == 4001

    def test_a_long_line_is_cut(self, reporter: Reporter, events: Events) -> None:
        reporter.line("x" * 100_000)
        assert len(events[0]["text"]) == 4000


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"event": "other"}', b'{"event": "line"}', b"\xff\xfe"])
def test_what_is_no_event(line: bytes) -> None:
    with pytest.raises(ValueError):
        read_event(line)


def test_what_is_an_event() -> None:
    assert isinstance(read_event(b'{"event": "result", "result": {}, "more": 1}'), ResultEvent)


def test_a_child_imports_no_event_loop() -> None:
    program = "import sys, orchestrator.jobs.child; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert {"asyncio", "pydantic", "sqlite3"} & set(done.stdout.split()) == set()
