"""Transitions of servers, kept for a while, and followers of what comes."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from orchestrator.schemas import Transition

_KEPT = 1000


class Events:
    """A ring of transitions. Followers read from the ring itself, so one that is slow costs nothing."""

    def __init__(self) -> None:
        self._kept: deque[Transition] = deque(maxlen=_KEPT)
        self._count = 0
        self._closed = False
        self._news = asyncio.Event()

    def add(self, model: str, state: str, why: str, instance: int | None = None, host: str | None = None) -> None:
        """Note a transition of now."""
        self._count += 1
        self._kept.append(
            Transition(
                number=self._count, at=time.time(), model=model, instance=instance, host=host, state=state, why=why
            )
        )
        self._tell()

    async def follow(self, after: int = 0, *, is_live: bool = True) -> AsyncIterator[Transition]:
        """Those kept whose numbers are greater than `after`, then with `is_live` what comes, until `close`."""
        # A number from before a restart of ours is greater than any of now.
        seen = after if after <= self._count else 0
        while True:
            news = self._news
            for event in [e for e in self._kept if e.number > seen]:
                seen = event.number
                yield event
            if seen < self._count:
                continue
            if self._closed or not is_live:
                return
            await news.wait()

    def close(self) -> None:
        """End every follower, those to come too."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
