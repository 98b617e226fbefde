"""Transitions of servers, kept for a while, and followers of what comes."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator

from orchestrator.schemas import Transition
from orchestrator.servers.instance import Instance

_KEPT = 1000


class Events:
    """A ring of transitions. Followers read from the ring itself, so one that is slow costs nothing."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, str], float] = {}
        """When such an event of a model last was, Unix seconds: `loaded`, `ended`, `flags`, `failed`."""
        self._kept: deque[Transition] = deque(maxlen=_KEPT)
        self._count = 0
        self._closed = False
        self._news = asyncio.Event()

    def add(
        self,
        model: str,
        state: str,
        why: str,
        instance: int | None = None,
        host: str | None = None,
        *,
        failure: str | None = None,
        changes: tuple[str, ...] = (),
    ) -> Transition:
        """Note a transition of now."""
        self._count += 1
        told = Transition(
            number=self._count,
            at=time.time(),
            model=model,
            instance=instance,
            host=host,
            state=state,
            why=why,
            failure=failure,
            changes=changes,
        )
        self._kept.append(told)
        self.last |= {(model, event): told.at for event in _events_of(told)}
        self._tell()
        return told

    def note(self, instance: Instance) -> Transition:
        """Note that an instance has come into its state."""
        failure, changes, why = instance.failure, instance.changes if instance.is_ready else (), instance.why
        if changes:
            why = f"{why}; otherwise than before: {', '.join(changes)}"
        return self.add(
            instance.model,
            "gone" if instance.phase is None else str(instance.state),
            why if failure is None else failure.message,
            instance.number,
            instance.goal.host.name,
            failure=None if failure is None else failure.reason,
            changes=changes,
        )

    def keep_only(self, models: Collection[str]) -> None:
        """Forget when something last happened to models that are gone."""
        self.last = {key: at for key, at in self.last.items() if key[0] in models}

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


def _events_of(told: Transition) -> Iterator[str]:
    """What a transition is for dashboards. A failure is told when it comes, and again when nothing is left."""
    if told.state == "ready":
        yield "loaded"
        if told.changes:
            yield "flags"
    elif told.state == "gone":
        if told.failure is None:
            yield "ended"
    elif told.failure is not None:
        yield "failed"
