import asyncio
import threading

import pytest

from orchestrator.servers.aside import Aside
from tests.unit.conftest import until


async def test_what_the_work_says() -> None:
    aside = Aside(1)
    assert await aside.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await aside.run(lambda: 1 // 0)
    assert await aside.run(lambda: threading.current_thread().daemon), "it must not hold the end of the process"


async def test_a_caller_that_leaves_gives_no_turn_away() -> None:
    aside, gate = Aside(1), threading.Event()
    began: list[int] = []

    def work() -> None:
        began.append(1)
        gate.wait(10)

    leaver = asyncio.create_task(aside.run(work))
    await until(lambda: began, "the work has begun")
    leaver.cancel()
    await asyncio.wait({leaver})
    assert aside._free.locked(), "its turn is not over"
    second = asyncio.create_task(aside.run(work))
    gate.set()
    async with asyncio.timeout(10):
        await second
    assert len(began) == 2
