"""Followers of a job: late ones, slow ones, those who come back, those who leave."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs import job as job_module
from orchestrator.jobs import meter
from orchestrator.schemas import JobEvent, JobLine, JobProgress, JobState, JobView
from tests.unit.conftest import until
from tests.unit.jobs.conftest import Bench, opened


def names(events: list[JobEvent]) -> list[str]:
    return [event.name for event in events]


def line_numbers(events: list[JobEvent]) -> list[int]:
    return [event.data.number for event in events if isinstance(event.data, JobLine)]


def progress(event: JobEvent) -> JobProgress:
    assert isinstance(event.data, JobProgress)
    return event.data


async def collect(follower: AsyncIterator[JobEvent], into: list[JobEvent]) -> None:
    async for event in follower:
        into.append(event)


async def test_a_late_follower_hears_everything(bench: Bench) -> None:
    job = await bench.end(["phase", "fetching", 9], ["line", "one"], ["advance", 9], ["line", "two"], result={"n": 1})
    first, *lines, end = await bench.events(job.id)
    assert (first.name, end.name, first.data, end.data) == ("job", "end", job, job)
    assert [line.data.text for line in lines if isinstance(line.data, JobLine)] == ["one", "two"]
    assert line_numbers(lines) == [1, 2]
    assert names(await bench.events(job.id, after=1)) == ["job", "line", "end"]
    assert names(await bench.events(job.id, after=99)) == ["job", "end"]


async def test_one_who_comes_between_and_one_from_the_beginning(bench: Bench) -> None:
    job = await bench.submit(
        ["line", "one"], bench.wait("go"), ["line", "two"], ["phase", "hashing"], bench.wait("end")
    )
    early: list[JobEvent] = []
    late: list[JobEvent] = []
    followers = [asyncio.create_task(collect(bench.jobs.follow(job.id), early))]
    await until(lambda: line_numbers(early) == [1], "the first line is heard")
    followers.append(asyncio.create_task(collect(bench.jobs.follow(job.id), late)))
    await until(lambda: line_numbers(late) == [1], "by the late one too")
    bench.open_gate("go")
    await until(lambda: line_numbers(early) == line_numbers(late) == [1, 2], "what comes is heard")
    await until(lambda: "progress" in names(early) and "progress" in names(late), "progress too")
    bench.open_gate("end")
    async with asyncio.timeout(5):
        await asyncio.gather(*followers)
    for heard in (early, late):
        assert (heard[0].name, heard[-1].name) == ("job", "end")
        assert isinstance(heard[-1].data, JobView) and heard[-1].data.state is JobState.SUCCEEDED
        assert progress(next(e for e in heard if e.name == "progress")).phase == "hashing"


async def test_a_slow_follower_holds_nobody_and_hears_the_newest_progress(bench: Bench) -> None:
    steps: list[list[Any]] = [["phase", "fetching", 1000, None, done] for done in range(1000)]
    job = await bench.submit(bench.wait("go"), *steps, ["lines", 300], bench.wait("end"))
    slow = bench.jobs.follow(job.id)
    assert (await anext(slow)).name == "job"
    bench.open_gate("go")
    heard: list[JobEvent] = []
    fast = asyncio.create_task(collect(bench.jobs.follow(job.id), heard))
    await until(lambda: line_numbers(heard)[-1:] == [300], "the job goes on at its pace")
    events = [await anext(slow) for _ in range(301)]
    assert names(events) == ["line"] * 300 + ["progress"]
    assert progress(events[-1]).done_bytes == 999
    bench.open_gate("end")
    await fast
    rest = [event async for event in slow]
    assert names(rest)[-1] == "end"


async def test_a_stall_is_heard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate falls although the work says nothing."""
    monkeypatch.setattr(job_module, "_LOOK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(meter, "_WINDOW_SECONDS", 0.2)
    monkeypatch.setattr(meter, "_SHORTEST_SPAN_SECONDS", 0.01)
    job = await bench.submit(["phase", "fetching", 2_000_000], ["advance", 2_000_000], bench.wait("end"))
    heard: list[JobEvent] = []
    following = asyncio.create_task(collect(bench.jobs.follow(job.id), heard))
    await until(lambda: any(e.name == "progress" and progress(e).rate_bytes_per_second == 0 for e in heard), "a stall")
    bench.open_gate("end")
    await following


async def test_a_follower_who_leaves_is_forgotten(bench: Bench) -> None:
    job = await bench.submit(bench.wait("end"))
    heard: list[JobEvent] = []
    following = asyncio.create_task(collect(bench.jobs.follow(job.id), heard))
    await until(lambda: heard, "it follows")
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    bench.open_gate("end")
    assert (await bench.jobs.wait(job.id)).state is JobState.SUCCEEDED


async def test_more_lines_than_are_kept(bench: Bench) -> None:
    job = await bench.end(["lines", 3000])
    numbers = line_numbers(await bench.events(job.id))
    assert numbers == list(range(2001, 3001))


async def test_followers_and_waiters_are_let_go_at_a_shutdown(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        job = await bench.submit(["line", "x"], bench.wait("never"))
        heard: list[JobEvent] = []
        following = asyncio.create_task(collect(bench.jobs.follow(job.id), heard))
        waiting = asyncio.create_task(bench.jobs.wait(job.id))
        await until(lambda: line_numbers(heard), "it follows")
        bench.jobs.begin_close()
        async with asyncio.timeout(1):
            await following
            with pytest.raises(Exception, match="shutting down"):
                await waiting
        assert "end" not in names(heard)


async def test_a_line_is_heard_only_when_it_is_on_disk(bench: Bench) -> None:
    job = await bench.submit(["line", "x"], bench.wait("end"))
    async for event in bench.jobs.follow(job.id):
        if event.name == "line":
            assert await bench.jobs._database.job_lines(job.id) == [event.data]
            bench.open_gate("end")
