"""Work that may take long or wait for another machine, in threads that nobody else needs.

asyncio's own threads are few, and every request needs one for a moment: look-ups at a dead hub would take all of them.
These are daemons, so that such a look-up does not hold the end of the process either.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """At most `threads` pieces of work at a time; further ones wait for their turn."""

    def __init__(self, threads: int) -> None:
        self._free = asyncio.Semaphore(threads)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. A caller that leaves does not end it: its turn lasts until it has ended."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def release(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._free.release)

        def body() -> None:
            try:
                outcome.set_result(work())
            except BaseException as e:
                outcome.set_exception(e)

        outcome.add_done_callback(release)
        threading.Thread(target=body, daemon=True, name="aside").start()
        return await asyncio.wrap_future(outcome)
