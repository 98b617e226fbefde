"""Pages of several servers at once: each well within the deadline, or not at all."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from orchestrator.servers.reading import Target, read_pages
from tests.unit.servers.metrics_servers import KEY, Answer, answering, ok, target


async def read(*targets: Target, timeout_seconds: float = 5.0) -> dict[int, bytes]:
    return await asyncio.to_thread(read_pages, targets, timeout_seconds)


def says(*pieces: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


async def test_a_page_is_read_with_the_servers_own_key() -> None:
    heard: list[bytes] = []
    async with answering(says(ok("llamacpp:x 1\n")), heard) as port:
        assert await read(target(port)) == {1: b"llamacpp:x 1\n"}
    head = heard[0].decode().split("\r\n")
    assert head[0] == "GET /metrics HTTP/1.1"
    assert {f"Host: 127.0.0.1:{port}", f"Authorization: {KEY}", "Connection: close"} <= set(head)


async def test_a_large_page_and_one_that_comes_in_pieces() -> None:
    large = "x" * 1_000_000
    whole = ok("in pieces")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(answering(says(ok(large))))
        pieces = [whole[i : i + 1] for i in range(len(whole))]
        two = await stack.enter_async_context(answering(says(*pieces)))
        assert await read(target(one), target(two, 2)) == {1: large.encode(), 2: b"in pieces"}


async def test_one_that_hangs_holds_nobody_up_for_longer_than_the_deadline() -> None:
    released = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        await released.wait()

    async with answering(hang) as silent, answering(says(ok("page"))) as fine:
        began = time.monotonic()
        pages = await read(target(silent), target(fine, 2), timeout_seconds=0.1)
        released.set()
    assert pages == {2: b"page"}
    assert 0.1 <= time.monotonic() - began < 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\1\2",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\ncut",
        b"\r\n\r\n",
        b"x" * (1 << 20),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_none(answer: bytes) -> None:
    async with answering(says(answer)) as bad, answering(says(ok("page"))) as fine:
        assert await read(target(bad), target(fine, 2)) == {2: b"page"}


async def test_nobody_there() -> None:
    async with answering(says(ok("page"))) as port:
        pass
    assert await read(target(port), Target(2, "name.invalid", 80, KEY), Target(3, "::1", port, KEY)) == {}
    assert await read() == {}


def test_a_target_hides_its_key() -> None:
    assert "only-ours" not in repr(target(1))
