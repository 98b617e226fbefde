"""Counts of jobs since the process began."""

from pathlib import Path

from tests.unit.conftest import until
from tests.unit.jobs.conftest import Bench, opened


async def test_downloads_count_as_they_move_and_also_of_work_that_fails_or_is_cancelled(bench: Bench) -> None:
    figures = bench.jobs.figures
    moving = await bench.submit(["downloaded", "hf", 1000], bench.wait("never"))
    await until(lambda: figures.downloaded_bytes["hf"] == 1000, "they are counted while it runs")
    assert bench.jobs.live()["toy", "running"] == 1
    await bench.jobs.cancel(moving.id)
    await bench.end(["downloaded", "hf", 20], ["downloaded", "url", 3], ["fail", "source_failed", "no"])
    await bench.end(["phase", "fetching", 500, None, 400], ["advance", 500])
    assert dict(figures.downloaded_bytes) == {"hf": 1020, "url": 3}
    ended = {key: count for key, count in figures.ended.items() if count}
    assert ended == {("toy", "cancelled"): 1, ("toy", "failed"): 1, ("toy", "succeeded"): 1}
    assert set(bench.jobs.live().values()) == {0}


async def test_what_ended_before_a_restart_is_not_counted_again(tmp_path: Path) -> None:
    async with opened(tmp_path, parallel=1) as bench:
        await bench.end()
        await bench.submit(bench.wait("go"))
        await bench.submit(["touch", bench.path("second")], kind="other")
        await until(lambda: bench.jobs.live()["toy", "running"], "the first one runs")
        assert bench.jobs.live()["other", "queued"] == 1
    async with opened(tmp_path, parallel=1) as bench:
        assert not any(bench.jobs.figures.ended.values())
        bench.open_gate("go")
        await until(lambda: sum(bench.jobs.figures.ended.values()) == 2, "both have ended")
        assert bench.jobs.figures.ended["toy", "succeeded"] == bench.jobs.figures.ended["other", "succeeded"] == 1
