"""One job in memory: its record, how far it is, and who waits for news of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from orchestrator.db import Database, JobRecord
from orchestrator.jobs.events import AdvanceEvent, ChildEvent, DownloadEvent, LineEvent, PhaseEvent
from orchestrator.jobs.figures import Figures
from orchestrator.jobs.lines import Lines
from orchestrator.jobs.meter import Meter
from orchestrator.jobs.process import Child
from orchestrator.schemas import JobEvent, JobProgress, JobState, JobView

# A rate that falls is shown although the child says nothing.
_LOOK_AGAIN_SECONDS = 1.0


class Job:
    """A job, live or ended. `record` is what the database has."""

    def __init__(self, database: Database, record: JobRecord, figures: Figures) -> None:
        self.record = record
        self.lines = Lines(database, record.id, self.notify)
        self.child: Child | None = None
        self.is_cancelling = False
        self.is_ending = False
        # The orchestrator closes: followers are let go, and the job goes on when it is back.
        self.is_left = False
        self._figures = figures
        self._meter = Meter()
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether its end is known and kept."""
        return self.record.state.is_final

    @property
    def work(self) -> tuple[str, str]:
        """What it does, as far as another job must not do the same at the same time."""
        return self.record.kind, self.record.key

    def view(self) -> JobView:
        """The job as it is now."""
        r = self.record
        return JobView(
            id=r.id,
            kind=r.kind,
            subject=r.subject,
            state=r.state,
            created=r.created,
            started=r.started,
            ended=r.ended,
            runs=r.runs,
            progress=self._progress(),
            result=r.result,
            error=r.error,
        )

    def changed(self, **changes: Any) -> JobRecord:
        """Its record with these changes, to be kept before it is believed."""
        return replace(self.record, **changes)

    def believe(self, record: JobRecord) -> None:
        """From now on this is the job; everybody who waits is told."""
        self.record = record
        self.notify()

    def take(self, event: ChildEvent) -> None:
        """What the child says."""
        if isinstance(event, DownloadEvent):
            # Also of one that is being ended: the bytes have come.
            self._figures.downloaded_bytes[event.source] += event.count_bytes
        if self.is_ending:
            return
        match event:
            case PhaseEvent(phase=phase, total_bytes=total, file=file, done_bytes=done):
                self._meter.begin(phase, total, file, done)
                self.notify()
            case AdvanceEvent(done_bytes=done):
                self._meter.advance(done)
                self.notify()
            case LineEvent(text=text):
                self.lines.add(text)

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def over(self) -> None:
        """Return when it is over, or left."""
        while not (self.is_over or self.is_left):
            await self._changed.wait()

    async def follow(self, after_line: int) -> AsyncIterator[JobEvent]:
        """See Jobs.follow. Nothing is queued for a follower: whoever is slow sees the newest progress when he looks."""
        view = self.view()
        yield JobEvent("job", view)
        shown = view.progress
        while True:
            # Taken first: what comes while we look wakes us, and the lines of a job that is over are complete.
            changed, is_over = self._changed, self.is_over
            for line in await self.lines.after(after_line):
                yield JobEvent("line", line)
                after_line = line.number
            if is_over:
                yield JobEvent("end", self.view())
                return
            if self.is_left:
                return
            progress = self._progress()
            if progress is not None and progress != shown:
                yield JobEvent("progress", progress)
                shown = progress
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with a change.
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await changed.wait()

    def _progress(self) -> JobProgress | None:
        return self._meter.read() if self.record.state is JobState.RUNNING else None
