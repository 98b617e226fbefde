import asyncio
import dataclasses
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.db import Database, IdempotencyKey, JobRecord
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Desired, FlagValue, JobError, JobLine, JobState

FLAGS: dict[str, FlagValue] = {"ctx-size": 4096, "temp": 0.5, "kv-unified": True, "flash-attn": "auto"}


async def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    with Database(tmp_path / "state") as database:
        assert database.servers() == {}
        await database.set_server("a", Desired.RUNNING, FLAGS)
        await database.set_server("a", Desired.STOPPED, FLAGS)
        await database.set_server("b", Desired.RUNNING, {})
    with Database(tmp_path / "state") as database:
        assert database.servers() == {"a": (Desired.STOPPED, FLAGS), "b": (Desired.RUNNING, {})}


async def test_writes_at_the_same_time_all_arrive(tmp_path: Path) -> None:
    with Database(tmp_path) as database:
        await asyncio.gather(*(database.set_server(f"m{i}", Desired.RUNNING, {}) for i in range(50)))
        assert len(database.servers()) == 50


def test_an_acknowledged_write_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, pathlib\n"
        "from orchestrator.db import Database\n"
        "from orchestrator.schemas import Desired\n"
        f"database = Database(pathlib.Path({str(tmp_path)!r}))\n"
        "asyncio.run(database.set_server('a', Desired.RUNNING, {'ctx-size': 1}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=dict(os.environ))
    assert done.returncode == -9
    with Database(tmp_path) as database:
        assert database.servers() == {"a": (Desired.RUNNING, {"ctx-size": 1})}


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    with Database(tmp_path):
        with pytest.raises(SlipstreamError) as caught:
            Database(tmp_path)
        assert caught.value.code is Code.MISCONFIGURED
        assert caught.value.hint is not None and "--workers" in caught.value.hint
    with Database(tmp_path) as again:
        assert again.servers() == {}


def test_only_its_owner_reads_the_folder(tmp_path: Path) -> None:
    with Database(tmp_path / "state"):
        assert (tmp_path / "state").is_dir()
        assert (tmp_path / "state" / "lock").stat().st_mode & 0o077 == 0


def job(id: str, **fields: Any) -> JobRecord:
    return JobRecord(id, "pull", "toy", "k", {"source": {"path": "ä"}}, created=1.5, **fields)


def lines(first: int, last: int) -> list[JobLine]:
    return [JobLine(number=i, at=i + 0.5, text=f"line {i}") for i in range(first, last + 1)]


class TestJobs:
    async def test_a_job_in_all_its_states(self, tmp_path: Path) -> None:
        error = JobError(code="disk_full", message="full", hint="make room", details={"n": [1]})
        first, second = job("a"), job("b")
        with Database(tmp_path) as database:
            for record in (first, second, dataclasses.replace(first, state=JobState.RUNNING, started=2.5, runs=1)):
                await database.set_job(record)
            first = dataclasses.replace(
                first, state=JobState.FAILED, started=2.5, ended=3.5, runs=2, result={"x": None}, error=error
            )
            await database.set_job(first)
        with Database(tmp_path) as database:
            assert database.jobs() == [first, second], "in the order they were asked for"

    async def test_the_last_lines_are_kept(self, tmp_path: Path) -> None:
        with Database(tmp_path) as database:
            for id in "ab":
                await database.set_job(job(id))
                await database.add_job_lines(id, lines(1, 8), 10)
            await database.add_job_lines("a", lines(9, 14), 10)
            assert await database.job_lines("a") == lines(5, 14)
            assert await database.job_lines("a", after=12) == lines(13, 14)
            assert await database.job_lines("b") == lines(1, 8)
            assert await database.job_lines("nobody") == []

    async def test_a_job_that_is_forgotten_leaves_nothing(self, tmp_path: Path) -> None:
        with Database(tmp_path) as database:
            for id in "abc":
                await database.set_job(job(id), IdempotencyKey(f"key {id}", id, "f"))
                await database.add_idempotency_key(IdempotencyKey(f"other {id}", id, "f"))
                await database.add_job_lines(id, lines(1, 2), 10)
            await database.forget_jobs(["a", "c"])
            assert [record.id for record in database.jobs()] == ["b"]
            assert {key.key for key in database.idempotency_keys()} == {"key b", "other b"}
            assert await database.job_lines("a") == [] != await database.job_lines("b")

    async def test_what_fails_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with Database(tmp_path) as database:
            await database.set_job(job("a"), IdempotencyKey("key", "a", "f"))
            with pytest.raises(sqlite3.IntegrityError):
                await database.set_job(job("b"), IdempotencyKey("key", "b", "f"))
            assert [record.id for record in database.jobs()] == ["a"]
            await database.set_job(job("c"))

    async def test_a_full_disk_is_called_so(self, tmp_path: Path) -> None:
        with Database(tmp_path) as database:
            database._db.execute("pragma max_page_count = 1")
            with pytest.raises(SlipstreamError) as caught:
                await database.set_job(job("a", result={"x": "y" * 1_000_000}))
            assert caught.value.code is Code.DISK_FULL
            database._db.execute("pragma max_page_count = 100000")
            await database.set_job(job("a"))

    async def test_a_write_whose_caller_leaves_is_whole_or_not_at_all(self, tmp_path: Path) -> None:
        with Database(tmp_path) as database:
            await database.set_job(job("a"))
            for i in range(20):
                write = asyncio.create_task(database.add_job_lines("a", lines(100 * i + 1, 100 * i + 100), 10_000))
                await asyncio.sleep(0)
                write.cancel()
                await asyncio.wait([write])
            assert len(await database.job_lines("a")) % 100 == 0
            await database.set_job(job("b"))


async def test_a_database_of_an_earlier_version_gains_its_tables(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "slipstream.db")
    old.execute("create table servers (model text primary key, desired text not null, flags text not null) strict")
    old.execute("insert into servers values ('a', 'running', '{}')")
    old.commit()
    old.close()
    with Database(tmp_path) as database:
        assert database.servers() == {"a": (Desired.RUNNING, {})}
        await database.set_job(job("a"))
