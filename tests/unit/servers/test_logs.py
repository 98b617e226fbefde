import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from orchestrator.servers.logs import LogBuffer


def follow(log: LogBuffer, lines: int) -> AsyncGenerator[str, None]:
    return cast(AsyncGenerator[str, None], log.follow(lines))


def test_tail_is_the_last_lines_oldest_first() -> None:
    log = LogBuffer(3)
    for i in range(5):
        log.append(str(i))
    assert log.tail(2) == ("3", "4")
    assert log.tail(100) == ("2", "3", "4")
    assert log.tail(0) == ()
    assert log.count == 5


async def test_follow_gives_the_tail_then_what_comes_then_ends() -> None:
    log = LogBuffer(10)
    for i in range(4):
        log.append(str(i))
    seen: list[str] = []

    async def collect() -> None:
        async for line in log.follow(2):
            seen.append(line)
            if line == "3":
                log.append("new")
                log.close()

    async with asyncio.timeout(5):
        await collect()
    assert seen == ["2", "3", "new"]


async def test_a_slow_follower_loses_lines_and_still_hears_the_end() -> None:
    log = LogBuffer(10)
    async with asyncio.timeout(5), aclosing(follow(log, 1)) as lines:
        log.append("first")
        assert await anext(lines) == "first"
        for i in range(5000):
            log.append(str(i))
        log.close()
        seen = [line async for line in lines]
    assert 0 < len(seen) <= 1000
    assert log.count == 5001


async def test_who_comes_after_the_end_is_not_kept_waiting() -> None:
    log = LogBuffer(10)
    log.append("last words")
    log.close()
    async with asyncio.timeout(1):
        assert [line async for line in log.follow(10)] == ["last words"]


async def test_a_follower_that_leaves_is_forgotten() -> None:
    log = LogBuffer(10)
    log.append("x")
    async with aclosing(follow(log, 1)) as lines:
        await anext(lines)
        assert log._followers
    assert not log._followers
