"""Lines of a job: numbers, batches, and that what was shown is on disk."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.db import Database, JobRecord
from orchestrator.jobs import lines as module
from orchestrator.jobs.lines import KEPT_LINES, Lines
from orchestrator.schemas import JobLine
from tests.unit.conftest import until


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path) as database:
        yield database


async def made(database: Database) -> Lines:
    await database.set_job(JobRecord("a", "toy", "x", "k", {}, created=1.0))
    lines = Lines(database, "a", lambda: None)
    await lines.open()
    return lines


def texts(lines: list[JobLine]) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in lines]


async def test_what_is_shown_is_on_disk(database: Database) -> None:
    lines = await made(database)
    lines.add("one")
    lines.add("two")
    assert await lines.after(0) == []
    await until(lambda: lines._shown, "they are shown")
    expected = [(1, "one"), (2, "two")]
    assert texts(await lines.after(0)) == texts(await database.job_lines("a")) == expected
    assert texts(await lines.after(1)) == expected[1:]
    await lines.close()
    assert texts(await lines.after(1)) == expected[1:], "from the database"


async def test_lines_come_to_disk_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await made(database)
    batches: list[int] = []
    write = database.add_job_lines

    async def counted(job: str, batch: list[JobLine], kept: int) -> None:
        batches.append(len(batch))
        if len(batches) == 1:
            lines.add("while the first batch is written")
        await write(job, batch, kept)

    monkeypatch.setattr(database, "add_job_lines", counted)
    for i in range(500):
        lines.add(str(i))
    await until(lambda: len(batches) == 2, "both are written")
    await lines.close()
    assert batches == [500, 1]
    assert [line.number for line in await lines.after(0)] == list(range(1, 502))


async def test_numbers_go_on_in_a_further_run(database: Database) -> None:
    lines = await made(database)
    lines.add("first run")
    await lines.close()
    lines = await made(database)
    lines.add("second run")
    await lines.close()
    assert texts(await lines.after(0)) == [(1, "first run"), (2, "second run")]


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_last_ones_are_kept(database: Database, at_once: bool) -> None:
    lines = await made(database)
    for i in range(1, 2 * KEPT_LINES + 1):
        lines.add(f"line {i}")
        if not at_once and i % 500 == 0:
            await until(lambda: not lines._waiting and lines._writing is None, "they are written")
            assert len(await lines.after(0)) == min(i, KEPT_LINES)
    await lines.close()
    kept = texts(await lines.after(0))
    assert kept == [(i, f"line {i}") for i in range(KEPT_LINES + 1, 2 * KEPT_LINES + 1)]


async def test_a_close_while_a_batch_is_written(database: Database) -> None:
    lines = await made(database)
    lines.add("one")
    lines._start_writing()
    await asyncio.sleep(0)
    lines.add("two")
    await lines.close()
    await asyncio.sleep(2 * module._BATCH_SECONDS)
    assert texts(await lines.after(0)) == [(1, "one"), (2, "two")]
