import asyncio
from collections.abc import Iterable
from typing import Any, cast

from orchestrator.servers.drivers.docker_engine import Engine, Entries
from orchestrator.servers.drivers.docker_log import Follower


class Logs:
    """An engine that has entries to read: one list for each time it is asked."""

    def __init__(self, *times: Iterable[bytes] | Exception) -> None:
        self.times = list(times)
        self.asked: list[tuple[int | str, float | None]] = []

    def entries(self, container: str, lines: int | str, since: float | None) -> Entries:
        self.asked.append((lines, since))
        now = self.times.pop(0)
        if isinstance(now, Exception):
            raise now
        return Entries(now)


def at(second: int, text: str) -> bytes:
    return f"2026-01-02T03:04:{second:02d}.000000001Z {text}".encode()


async def lines_of(logs: Logs) -> list[str]:
    taken: list[str] = []
    follower = Follower(cast(Engine, cast(Any, logs)), "c", taken.append)
    async with asyncio.timeout(10):
        while logs.times:
            await follower.begin(100)
    return taken


async def test_times_and_folders_are_taken_off() -> None:
    assert await lines_of(Logs([at(1, "loading /srv/models/m.gguf\n"), b"no time\n"])) == ["loading m.gguf", "no time"]


async def test_lines_that_the_engine_has_split_are_put_together() -> None:
    assert await lines_of(Logs([at(1, "a" * 16384), at(1, "b" * 16384), at(1, "c\n"), at(2, "d\n")])) == [
        "a" * 16384 + "b" * 16384 + "c",
        "d",
    ]


async def test_a_line_without_end_is_dropped_and_the_next_one_is_whole() -> None:
    endless = [at(1, "x" * 16384) for _ in range(80)]
    assert await lines_of(Logs([*endless, at(2, "x\n"), at(3, "next\n")])) == [
        "(a log line of more than 1 MiB was dropped)",
        "next",
    ]


async def test_it_goes_on_where_the_connection_broke() -> None:
    logs = Logs([at(1, "one\n"), at(2, "two\n")], OSError("gone"), [at(2, "two\n"), at(3, "three\n")])
    assert await lines_of(logs) == ["one", "two", "three"]
    assert logs.asked[0] == (100, None)
    assert logs.asked[1] == logs.asked[2] == ("all", 1767323042)


async def test_more_lines_than_may_be_on_their_way_all_arrive_in_order() -> None:
    many = [at(1, f"{i}\n").replace(b"000000001Z", f"{i + 1:09d}Z".encode()) for i in range(3000)]
    assert await lines_of(Logs(many)) == [str(i) for i in range(3000)]


async def test_nothing_is_told_after_the_end() -> None:
    taken: list[str] = []
    follower = Follower(cast(Engine, cast(Any, Logs([at(1, "late\n")]))), "c", taken.append)
    follower.close()
    async with asyncio.timeout(10):
        await follower.begin(100)
    assert taken == []
