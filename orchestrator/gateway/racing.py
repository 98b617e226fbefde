"""Work that something else may end early."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(work: Coroutine[Any, Any, T], stop: Coroutine[Any, Any, object]) -> T | None:
    """The result of `work`; None when `stop` ended first, and then `work` has been cancelled and is over."""
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await over(task)
        await over(other)


async def over(task: "asyncio.Future[Any]") -> bool:
    """Cancel a task and wait for its end; whether it has a result all the same."""
    task.cancel()
    await asyncio.wait({task})
    return not task.cancelled() and task.exception() is None
