"""The queue, joins, idempotency, cancel, the end of jobs, and what is kept of them."""

import asyncio
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs import jobs as module
from orchestrator.schemas import JobLine, JobState
from tests.support.orchestrator import pids
from tests.unit.conftest import refused, until
from tests.unit.jobs.conftest import Bench, opened


async def test_a_job_from_its_request_to_its_result(bench: Bench) -> None:
    submitted = await bench.submit(["phase", "fetching", 9], ["advance", 9], bench.wait("go"), result={"n": 1})
    assert (submitted.kind, submitted.subject, submitted.state) == ("toy", "a toy", JobState.QUEUED)
    await until(lambda: bench.jobs.get(submitted.id).progress, "it runs")
    running = bench.jobs.get(submitted.id)
    assert (running.state, running.runs) == (JobState.RUNNING, 1)
    assert running.progress is not None and running.progress.phase == "fetching"
    bench.open_gate("go")
    ended = await bench.jobs.wait(submitted.id)
    assert (ended.state, ended.result, ended.error, ended.progress) == (JobState.SUCCEEDED, {"n": 1}, None, None)
    assert ended.started is not None and ended.ended is not None
    assert ended.created <= ended.started <= ended.ended
    assert bench.jobs.list().jobs == (ended,)


async def test_an_error_is_the_jobs(bench: Bench) -> None:
    ended = await bench.end(["fail", "source_gated", "no access", "ask", {"url": "u"}])
    assert (ended.state, ended.result) == (JobState.FAILED, None)
    assert ended.error is not None
    assert ended.error.model_dump() == {
        "code": "source_gated",
        "message": "no access",
        "hint": "ask",
        "details": {"url": "u"},
    }


async def test_work_that_dies_is_a_failed_job(bench: Bench) -> None:
    ended = await bench.end(["complain", "last words"], ["die", signal.SIGABRT])
    assert ended.state is JobState.FAILED and ended.error is not None
    assert ended.error.message == "the work was killed by SIGABRT"
    assert ended.error.details == {"exit_status": -6, "log_tail": ["last words"]}
    absent = await bench.end(kind="absent")
    assert absent.error is not None and "status 1" in absent.error.message


async def test_no_process_to_be_had_is_a_failed_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_process(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", no_process)
        ended = await bench.end()
    assert ended.state is JobState.FAILED and ended.error is not None
    assert "Resource temporarily unavailable" in ended.error.message
    assert (await bench.end()).state is JobState.SUCCEEDED


async def test_who_is_not_there(bench: Bench) -> None:
    for call in (bench.jobs.get, bench.jobs.follow):
        with pytest.raises(SlipstreamError) as caught:
            call("nobody")
        assert caught.value.code is Code.NOT_FOUND and "'nobody'" in caught.value.message
    for work in (bench.jobs.wait("nobody"), bench.jobs.cancel("nobody")):
        assert (await refused(work)).code is Code.NOT_FOUND
    with pytest.raises(ValueError, match="no kind 'frobnicate', expected one of toy, other"):
        await bench.submit(kind="frobnicate")


async def test_so_many_run_at_a_time_in_the_order_they_were_asked_for(bench: Bench) -> None:
    started = bench.path("started")
    ids = [
        (await bench.submit(["note_pid", started], ["touch", bench.path(f"runs {i}")], bench.wait(f"go {i}"))).id
        for i in range(5)
    ]
    runs = [bench.folder / f"runs {i}" for i in range(5)]
    await until(lambda: runs[0].exists() and runs[1].exists(), "two run")
    assert [bench.state(id) for id in ids] == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 3
    bench.open_gate("go 1")
    await until(runs[2].exists, "the third runs in place of the second")
    assert not runs[3].exists()
    assert bench.state(ids[0]) is JobState.RUNNING
    for i in (0, 2, 3, 4):
        bench.open_gate(f"go {i}")
    assert all([(await bench.jobs.wait(id)).state is JobState.SUCCEEDED for id in ids])
    assert [job.id for job in bench.jobs.list().jobs] == ids[::-1], "the newest first"
    assert len(bench.pids("started")) == 5


class TestJoin:
    async def test_the_second_request_for_the_same_work_joins_the_first(self, bench: Bench) -> None:
        work = (["note_pid", bench.path("pid")], bench.wait("go"))
        first, second = await asyncio.gather(bench.submit(*work, key="x"), bench.submit(*work, key="x"))
        assert first.id == second.id
        await until(lambda: bench.pids("pid"), "it runs")
        assert (await bench.submit(*work, key="x")).id == first.id
        assert len({(await bench.submit(key="x", kind="other")).id, (await bench.submit(key="y")).id, first.id}) == 3
        bench.open_gate("go")
        await bench.jobs.wait(first.id)
        assert len(bench.pids("pid")) == 1
        assert (await bench.submit(*work, key="x")).id != first.id, "what has ended is not joined"

    async def test_a_job_that_is_being_cancelled_is_not_joined(self, bench: Bench) -> None:
        first = await bench.submit(bench.wait("never"), key="x")
        await until(lambda: bench.state(first.id) is JobState.RUNNING, "it runs")
        cancelling = asyncio.create_task(bench.jobs.cancel(first.id))
        await asyncio.sleep(0)
        second = await bench.submit(key="x")
        assert second.id != first.id
        assert (await bench.jobs.wait(second.id)).state is JobState.SUCCEEDED
        assert (await cancelling).state is JobState.CANCELLED


class TestIdempotency:
    async def test_a_key_gives_its_job_ended_or_not(self, bench: Bench) -> None:
        first = await bench.submit(bench.wait("go"), idempotency_key="k")
        assert (await bench.submit(bench.wait("go"), idempotency_key="k")).id == first.id
        joined = await bench.submit(bench.wait("go"), idempotency_key="another")
        assert joined.id == first.id
        bench.open_gate("go")
        await bench.jobs.wait(first.id)
        for key in ("k", "another"):
            assert (await bench.submit(bench.wait("go"), idempotency_key=key)).id == first.id
        assert (await bench.submit(bench.wait("go"))).id != first.id

    async def test_a_key_with_another_request_is_a_conflict(self, bench: Bench) -> None:
        first = await bench.end(["line", "x"], idempotency_key="k")
        for error in (
            await refused(bench.submit(["line", "y"], idempotency_key="k")),
            await refused(bench.submit(["line", "x"], kind="other", idempotency_key="k")),
        ):
            assert error.code is Code.CONFLICT
            assert "'k'" in error.message and first.id in error.message

    async def test_keys_are_kept_over_a_restart(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as bench:
            first = await bench.end(["line", "x"], idempotency_key="k")
        async with opened(tmp_path) as bench:
            assert (await bench.submit(["line", "x"], idempotency_key="k")).id == first.id

    async def test_two_at_the_same_instant(self, bench: Bench) -> None:
        """Of different work with one key, one is a job and the other a conflict."""
        both = await asyncio.gather(
            *(bench.submit(["line", text], idempotency_key="k") for text in "xy"), return_exceptions=True
        )
        assert sum(isinstance(answer, SlipstreamError) for answer in both) == 1
        assert len(bench.jobs.list().jobs) == 1


class TestCancel:
    async def test_a_child_that_ignores_term_is_gone_within_a_second(self, bench: Bench) -> None:
        job = await bench.submit(["ignore_term"], ["note_pid", bench.path("pid")], bench.wait("never"))
        pid = await bench.pid("pid")
        async with asyncio.timeout(1):
            ended = await bench.jobs.cancel(job.id)
        assert pid not in pids(), "killed, and reaped"
        assert (ended.state, ended.result, ended.error) == (JobState.CANCELLED, None, None)
        assert ended.ended is not None
        assert (await bench.jobs.cancel(job.id)) == ended, "a second one answers the same"

    async def test_a_queued_job_never_begins(self, bench: Bench) -> None:
        busy = [await bench.submit(bench.wait("go"), key=str(i)) for i in range(2)]
        waiting = await bench.submit(["touch", bench.path("begun")])
        assert (await bench.jobs.cancel(waiting.id)).state is JobState.CANCELLED
        bench.open_gate("go")
        for job in busy:
            assert (await bench.jobs.wait(job.id)).state is JobState.SUCCEEDED
        assert (await bench.end()).state is JobState.SUCCEEDED
        assert not (bench.folder / "begun").exists()

    @pytest.mark.parametrize("turns", range(5))
    async def test_a_cancel_at_any_instant_of_the_start(self, bench: Bench, turns: int) -> None:
        job = await bench.submit(bench.wait("never"))
        for _ in range(turns):
            await asyncio.sleep(0.002 * turns)
        async with asyncio.timeout(1):
            assert (await bench.jobs.cancel(job.id)).state is JobState.CANCELLED
        await until(lambda: not bench.jobs._running, "nothing runs")

    async def test_what_has_ended_stays_as_it_is(self, bench: Bench) -> None:
        ended = await bench.end()
        assert await bench.jobs.cancel(ended.id) == ended

    async def test_a_child_that_does_not_die_does_not_hold_the_answer(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one that sits in the kernel: it holds its place, and its work is not begun beside it."""
        job = await bench.submit(["note_pid", bench.path("pid")], bench.wait("go"), key="x")
        await bench.pid("pid")
        child = bench.jobs._jobs[job.id].child
        assert child is not None
        with monkeypatch.context() as patch:
            patch.setattr(child, "kill", lambda: None)
            async with asyncio.timeout(1):
                assert (await bench.jobs.cancel(job.id)).state is JobState.CANCELLED
            again = await bench.submit(key="x")
            assert (await bench.end()).state is JobState.SUCCEEDED
            assert bench.state(again.id) is JobState.QUEUED
        bench.open_gate("go")
        assert (await bench.jobs.wait(again.id)).state is JobState.SUCCEEDED
        assert bench.state(job.id) is JobState.CANCELLED, "what it reports later changes nothing"

    async def test_a_slow_disk_does_not_bring_a_cancelled_job_back(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database answers the start of the job only after the cancel has given up waiting for it."""
        gate, read = asyncio.Event(), bench.jobs._database.job_lines

        async def slow(*arguments: Any) -> list[JobLine]:
            await gate.wait()
            return await read(*arguments)

        monkeypatch.setattr(bench.jobs._database, "job_lines", slow)
        monkeypatch.setattr(module, "_CANCEL_TIMEOUT_SECONDS", 0.05)
        job = await bench.submit(["touch", bench.path("begun")])
        await until(lambda: bench.jobs._running, "it is about to run")
        async with asyncio.timeout(1):
            assert (await bench.jobs.cancel(job.id)).state is JobState.CANCELLED
        gate.set()
        await until(lambda: not bench.jobs._running, "its place is free")
        assert bench.state(job.id) is JobState.CANCELLED
        assert [record.state for record in bench.jobs._database.jobs()] == [JobState.CANCELLED]
        assert not (bench.folder / "begun").exists()

    async def test_a_caller_that_leaves_leaves_nothing_half_done(self, bench: Bench) -> None:
        job = await bench.submit(bench.wait("never"))
        await until(lambda: bench.state(job.id) is JobState.RUNNING, "it runs")
        caller = asyncio.create_task(bench.jobs.cancel(job.id))
        await asyncio.sleep(0)
        caller.cancel()
        assert (await bench.jobs.wait(job.id)).state is JobState.CANCELLED


async def test_a_submit_whose_caller_leaves_is_a_job_all_the_same(bench: Bench) -> None:
    caller = asyncio.create_task(bench.submit(["touch", bench.path("begun")]))
    await asyncio.sleep(0)
    caller.cancel()
    await until((bench.folder / "begun").exists, "it runs")
    assert len(bench.jobs.list().jobs) == 1


class TestRetention:
    async def test_the_newest_that_have_ended_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "KEPT_JOBS", 3)
        async with opened(tmp_path) as bench:
            long = await bench.submit(bench.wait("go"))
            short = [await bench.end(["line", "x"], key=str(i), idempotency_key=str(i)) for i in range(5)]
            bench.open_gate("go")
            await bench.jobs.wait(long.id)
            kept = [short[4].id, short[3].id, long.id]
            await until(lambda: len(bench.jobs.list().jobs) == 3, "the others are forgotten")
            assert [job.id for job in bench.jobs.list().jobs] == kept, "the one that ended last is no old one"
            assert (await refused(bench.jobs.wait(short[0].id))).code is Code.NOT_FOUND
        async with opened(tmp_path) as bench:
            assert [job.id for job in bench.jobs.list().jobs] == kept
            assert await bench.lines(short[4].id) == ["x"]
            again = await bench.end(["line", "x"], idempotency_key="0")
            assert again.id != short[0].id, "the key has gone with its job"
        rows = sqlite3.connect(tmp_path / "state" / "slipstream.db")
        assert {id for (id,) in rows.execute("select job from job_lines")} == {short[4].id, again.id}
        rows.close()


class TestFullDisk:
    async def test_a_job_that_cannot_be_kept_is_refused(self, bench: Bench) -> None:
        database = bench.jobs._database
        (pages,) = database._db.execute("pragma page_count").fetchone()
        database._db.execute(f"pragma max_page_count = {pages}")
        request = {"x": "y" * 1_000_000}
        error = await refused(bench.jobs.submit("toy", "x", request, key="x", idempotency_key="k"))
        assert error.code is Code.DISK_FULL
        assert bench.jobs.list().jobs == ()
        database._db.execute("pragma max_page_count = 1000000")
        assert (await bench.jobs.submit("toy", "x", request, key="x", idempotency_key="k")).state is JobState.QUEUED

    async def test_a_job_that_runs_comes_to_its_end(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        job = await bench.submit(bench.wait("go"), ["line", "x" * 3999], ["lines", 500], result={"x": "y" * 1_000_000})
        await until(lambda: bench.state(job.id) is JobState.RUNNING, "it runs")
        database = bench.jobs._database
        (pages,) = database._db.execute("pragma page_count").fetchone()
        database._db.execute(f"pragma max_page_count = {pages}")
        bench.open_gate("go")
        ended = await bench.jobs.wait(job.id)
        assert ended.state is JobState.SUCCEEDED
        assert len(await bench.lines(job.id)) == 501
        assert "not kept" in caplog.text
