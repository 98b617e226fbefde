"""Jobs over the end of the orchestrator: an orderly one, and kill -9 at any instant."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.db import Database, JobRecord
from orchestrator.schemas import JobList, JobState, JobView
from tests import REPOSITORY
from tests.support import eventually
from tests.support.orchestrator import is_gone
from tests.unit.conftest import until
from tests.unit.jobs.conftest import opened

pytestmark = pytest.mark.integration
DEADLINE_SECONDS = 20.0


def launch(folder: Path, *steps: list[Any]) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-P", "-m", "tests.unit.jobs.orchestrate", str(folder), *map(json.dumps, steps)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY)


def finished(process: "subprocess.Popen[bytes]") -> JobView:
    """The one job of an orchestrator that has come to its end."""
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    (job,) = JobList.model_validate_json(out).jobs
    return job


def pids_in(path: Path, count: int) -> list[int]:
    """Process ids of a file, when there are so many."""

    def read() -> list[int] | None:
        found = [int(line) for line in path.read_text().splitlines()] if path.exists() else []
        return found if len(found) == count else None

    return eventually(read, f"{count} in {path.name}", DEADLINE_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_job_runs_again(tmp_path: Path, number: signal.Signals) -> None:
    """The child and what it started die with the orchestrator; the next one runs the same request."""
    gate, pid, grandchild = tmp_path / "go", tmp_path / "pid", tmp_path / "grandchild"
    steps: list[list[Any]] = [
        *(["ignore_term"], ["line", "a run"], ["note_pid", str(pid)], ["start_grandchild", str(grandchild)]),
        ["wait_for", str(gate)],
    ]
    first = launch(tmp_path, *steps)
    children = pids_in(pid, 1) + pids_in(grandchild, 1)
    first.send_signal(number)
    first.communicate(timeout=DEADLINE_SECONDS)
    eventually(lambda: all(map(is_gone, children)), "the child and its child are gone")
    second = launch(tmp_path)
    pids_in(pid, 2)
    gate.touch()
    job = finished(second)
    assert (job.state, job.runs, job.result) == (JobState.SUCCEEDED, 2, {"n": 1})
    assert job.id == (tmp_path / "acknowledged").read_text()
    assert len(pids_in(pid, 2)) == 2


def test_an_acknowledged_job_survives_a_kill_at_once(tmp_path: Path) -> None:
    first = launch(tmp_path, ["line", "x"], ["wait_for", str(tmp_path / "go")])
    eventually((tmp_path / "acknowledged").exists, "it is acknowledged", DEADLINE_SECONDS)
    first.kill()
    first.communicate(timeout=DEADLINE_SECONDS)
    (tmp_path / "go").touch()
    job = finished(launch(tmp_path))
    assert (job.id, job.state) == ((tmp_path / "acknowledged").read_text(), JobState.SUCCEEDED)


async def test_lines_of_both_runs_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        job = await bench.submit(["line", "a run"], bench.wait("go"))
        async for event in bench.jobs.follow(job.id):
            if event.name == "line":
                break
    async with opened(tmp_path) as bench:
        bench.open_gate("go")
        ended = await bench.jobs.wait(job.id)
        assert (ended.state, ended.runs) == (JobState.SUCCEEDED, 2)
        assert await bench.lines(job.id) == ["a run", "a run"]


async def test_close_leaves_jobs_for_the_next_open(tmp_path: Path) -> None:
    async with opened(tmp_path, parallel=1) as bench:
        steps = (["note_pid", bench.path("pid")], bench.wait("go"))
        ids = [(await bench.submit(*steps, key=str(i))).id for i in range(3)]
        pid = await bench.pid("pid")
    assert is_gone(pid)
    async with opened(tmp_path, parallel=1) as bench:
        await until(lambda: len(bench.pids("pid")) == 2, "the first runs again")
        assert [bench.state(id) for id in ids] == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
        joined = await bench.submit(*steps, key="2")
        assert joined.id == ids[2]
        bench.open_gate("go")
        ended = [await bench.jobs.wait(id) for id in ids]
    assert [(job.state, job.runs) for job in ended] == [
        (JobState.SUCCEEDED, 2),
        (JobState.SUCCEEDED, 1),
        (JobState.SUCCEEDED, 1),
    ]


async def test_what_has_ended_does_not_run_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        ended = [await bench.end(["fail", "disk_full", "full"]), await bench.end(["line", "x"], result={"n": 1})]
        waiting = await bench.submit(bench.wait("never"))
        ended.append(await bench.jobs.cancel(waiting.id))
    async with opened(tmp_path) as bench:
        assert [bench.jobs.get(job.id) for job in ended] == ended
        assert await bench.lines(ended[1].id) == ["x"]
        assert bench.jobs._queue == [] and not bench.jobs._running


async def test_nothing_is_taken_on_after_the_close(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        job = await bench.submit(bench.wait("never"), idempotency_key="k")
        bench.jobs.begin_close()
        with pytest.raises(Exception, match="shutting down"):
            await bench.submit(["line", "x"])
        assert (await bench.submit(bench.wait("never"), idempotency_key="k")).id == job.id
    with Database(tmp_path / "state") as database:
        assert [record.id for record in database.jobs()] == [job.id]


async def test_work_that_this_version_does_not_know_has_failed(tmp_path: Path) -> None:
    with Database(tmp_path / "state") as database:
        await database.set_job(JobRecord("a", "retired", "x", "k", {}, created=1.0, state=JobState.RUNNING, runs=1))
    async with opened(tmp_path) as bench:
        job = bench.jobs.get("a")
        assert job.state is JobState.FAILED and job.error is not None
        assert (job.error.code, "'retired'" in job.error.message) == ("misconfigured", True)
