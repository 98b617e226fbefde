"""Transitions of a server: at most one at a time, each a task of its own that no client's disconnect ends.

Beginning a new one first cancels the old one and waits until it has cleaned up; so the state of a server is only
ever written by one task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.launch import Launch

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Transitions:
    """The transition of one model's server. `goal` is what it leads to, None for a stop."""

    model: str
    goal: Launch | None = field(default=None, kw_only=True)
    _transition: asyncio.Task[None] | None = field(default=None, kw_only=True)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, kw_only=True)

    @property
    def busy(self) -> bool:
        """Whether a transition is under way."""
        return self._transition is not None and not self._transition.done()

    async def begin(self, work: Work, goal: Launch | None, *, join: bool = False) -> "asyncio.Task[None]":
        """Make `work` the transition. A running one is joined if `join`, else cancelled and waited for."""
        async with self._turn:
            if self._transition is not None and self.busy:
                if join:
                    return self._transition
                self._transition.cancel()
                await asyncio.wait({self._transition})
            self.goal = goal
            self._transition = asyncio.create_task(work(), name=f"transition of {self.model}")
            # Whoever waits sees the error; without this, one that nobody awaits would be reported as lost.
            self._transition.add_done_callback(lambda t: t.cancelled() or t.exception())
            return self._transition

    async def command(self, work: Work, goal: Launch | None, *, join: bool = False) -> None:
        """`begin`, then wait for the end. The caller may be cancelled; the transition goes on."""
        task = await self.begin(work, goal, join=join)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise SlipstreamError(
                Code.CONFLICT, f"a newer request for {self.model!r} took the place of this one"
            ) from None

    async def settled(self) -> None:
        """Until no transition is under way, however it ends."""
        while self._transition is not None and self.busy:
            await asyncio.wait({self._transition})
            # Whoever cancelled it holds the turn until the next one is in its place.
            async with self._turn:
                pass
