"""One child: what it reports, every way in which it can end, and that nothing of it stays."""

import asyncio
import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs import process
from orchestrator.jobs.complaints import Complaints
from orchestrator.jobs.events import ChildEvent, ErrorEvent, LineEvent, ResultEvent
from orchestrator.jobs.process import Child, spawn
from orchestrator.schemas import JobError
from tests.support.orchestrator import group_members, is_gone
from tests.unit.conftest import until
from tests.unit.jobs.kinds import MODULE


async def start(*steps: list[Any], events: list[ChildEvent] | None = None, **request: Any) -> Child:
    seen = [] if events is None else events
    return await spawn(MODULE, {"steps": list(steps), **request}, "job 1", seen.append)


async def failure_of(*steps: list[Any]) -> JobError:
    """Run work that reports nothing."""
    child = await start(*steps)
    assert await child.finish() is None
    return child.failure()


async def test_events_then_the_result() -> None:
    events: list[ChildEvent] = []
    child = await start(["phase", "fetching", 9], ["advance", 9], ["line", "x"], events=events, result={"n": 1})
    outcome = await child.finish()
    assert outcome == ResultEvent(event="result", result={"n": 1})
    assert [event.event for event in events] == ["phase", "advance", "line"]
    assert is_gone(child.pid)


@pytest.mark.parametrize("size", [1, 1 << 20])
async def test_a_request_of_any_size_arrives(size: int) -> None:
    child = await start(result={"text": "ä" * size})
    outcome = await child.finish()
    assert isinstance(outcome, ResultEvent) and len(outcome.result["text"]) == size


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([["exit", 3]], "the work ended with status 3 and without a result"),
        ([["exit", 0]], "the work ended with status 0 and without a result"),
        ([["die", signal.SIGSEGV]], "the work was killed by SIGSEGV"),
        ([["die", signal.SIGKILL]], "the work was killed by SIGKILL"),
        ([["write", "hello\n"], ["wait_for", "/nowhere"]], "the work was ended: it wrote something that is no event"),
        ([["write", "half a line"], ["exit", 0]], "the work was ended: it wrote something that is no event"),
        ([["write_long", 6], ["wait_for", "/nowhere"]], "the work was ended: it wrote an event of more than 4 MiB"),
    ],
)
async def test_an_end_without_a_result_says_how(steps: list[list[Any]], message: str) -> None:
    async with asyncio.timeout(10):
        error = await failure_of(*steps)
    assert (error.code, error.message) == ("internal", message)
    assert (error.hint is not None) == ("SIGKILL" in message)


async def test_a_module_that_is_not_there() -> None:
    child = await spawn("tests.unit.jobs.nothing", {"x": "y" * 1_000_000}, "job 1", lambda event: None)
    assert await child.finish() is None
    error = child.failure()
    assert error.details["exit_status"] == 1
    (said,) = error.details["log_tail"]
    assert "No module named tests.unit.jobs.nothing" in said and "/" not in said


async def test_the_last_words_are_kept_without_secrets_and_tracebacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-very-secret")
    caplog.set_level(logging.INFO)
    lines = [
        *(f"line {i}" for i in range(100)),
        "token hf-very-secret in /home/somebody/cache/model.gguf",
        "Traceback (most recent call last):",
        '  File "/home/somebody/x.py", line 1, in <module>',
        "ValueError: /home/somebody is secret",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        "OSError: no",
        "the end",
    ]
    error = await failure_of(["complain", "\n".join(lines)], ["exit", 1])
    tail = error.details["log_tail"]
    assert tail[-2:] == ["token *** in model.gguf", "the end"]
    assert len(tail) == 20 and tail[0] == "line 82"
    assert "job 1: ValueError: /home/somebody is secret" in caplog.messages, "our own log has everything"
    assert "hf-very-secret" not in caplog.text, "but for secrets"


async def test_secrets_are_hidden_in_lines_and_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-very-secret")
    events: list[ChildEvent] = []
    said = "GET https://u:hf-very-secret@hub/x"
    child = await start(["line", said], ["fail", "source_failed", said, said], events=events)
    outcome = await child.finish()
    assert isinstance(outcome, ErrorEvent) and isinstance(events[0], LineEvent)
    assert [events[0].text, outcome.error.message, outcome.error.hint] == ["GET https://***@hub/x"] * 3


async def test_work_that_does_not_end_after_its_result_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_EXIT_TIMEOUT_SECONDS", 0.2)
    child = await start(["never_end"], result={"n": 1})
    async with asyncio.timeout(5):
        outcome = await child.finish()
    assert outcome == ResultEvent(event="result", result={"n": 1})


async def test_a_kill_takes_everything_along(tmp_path: Path) -> None:
    group, session = str(tmp_path / "group"), str(tmp_path / "session")
    steps: list[list[Any]] = [["ignore_term"], ["start_group_member", group], ["start_grandchild", session]]
    child = await start(*steps, ["touch", str(tmp_path / "ready")], ["wait_for", "/nowhere"])
    reading = asyncio.create_task(child.finish())
    await until((tmp_path / "ready").exists, "it runs")
    pids = [int((tmp_path / name).read_text()) for name in ("group", "session")]
    assert child.pid in group_members(child.pid)
    child.kill()
    async with asyncio.timeout(5):
        assert await reading is None
    await until(lambda: all(map(is_gone, pids)), "its children are gone")
    assert group_members(child.pid) == []
    child.kill()  # its number may be another's by now, and nothing is sent


async def test_what_the_leader_leaves_behind_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    child = await start(["start_group_member", str(path)], result={"n": 1})
    async with asyncio.timeout(5):
        assert await child.finish() is not None, "although the survivor holds stderr open"
    await until(lambda: is_gone(int(path.read_text())), "the survivor is gone")


async def test_an_event_that_cannot_be_taken_ends_the_work(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: ChildEvent) -> None:
        raise RuntimeError("a bug")

    child = await spawn(MODULE, {"steps": [["line", "x"], ["wait_for", "/nowhere"]]}, "job 1", broken)
    async with asyncio.timeout(5):
        assert await child.finish() is None
    assert "a bug" in caplog.text


async def test_a_flood_does_not_hold_the_loop() -> None:
    """Between two turns of somebody else the loop works for a moment only, in time of its own thread."""
    # Nothing is kept: a collection of garbage would be counted too.
    child = await spawn(MODULE, {"steps": [["lines", 20_000]]}, "job 1", lambda event: None)
    reading = asyncio.create_task(child.finish())
    longest, last = 0.0, time.thread_time()
    while not reading.done():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    assert await reading is not None
    assert longest < 0.1


class TestComplaints:
    def test_a_flood_does_not_fill_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        complaints = Complaints("job 1", str)
        for i in range(5000):
            complaints.add(f"line {i}")
        assert 500 <= len(caplog.messages) < 600
        assert complaints.tail()[-1] == "line 4999"
        complaints._since -= 1
        complaints.add("later")
        assert "lines dropped" in caplog.messages[-2] and caplog.messages[-1] == "job 1: later"

    def test_a_long_line_is_cut(self) -> None:
        complaints = Complaints("job 1", str)
        complaints.add("x" * 100_000)
        assert len(complaints.tail()[0]) == 2000
