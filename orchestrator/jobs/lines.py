"""The lines of one job: written to the database in batches, and shown when they are there."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from orchestrator.db import Database
from orchestrator.schemas import JobLine

KEPT_LINES = 1000
_BATCH_SECONDS = 0.2
_log = logging.getLogger(__name__)


class Lines:
    """The last lines, numbered from 1. What a follower was shown survives a kill, so its numbers stay true."""

    def __init__(self, database: Database, job_id: str, on_shown: Callable[[], None]) -> None:
        self._database = database
        self._job_id = job_id
        self._on_shown = on_shown
        self._shown: deque[JobLine] | None = None
        self._waiting: deque[JobLine] = deque(maxlen=KEPT_LINES)
        self._count = 0
        self._are_kept = True
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Before the first `add`: numbers go on after those of earlier runs."""
        self._shown = deque(await self._database.job_lines(self._job_id), KEPT_LINES)
        self._count = self._shown[-1].number if self._shown else 0

    def add(self, text: str) -> None:
        """Take a line."""
        self._count += 1
        self._waiting.append(JobLine(number=self._count, at=time.time(), text=text))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_SECONDS, self._start_writing)

    async def after(self, number: int) -> list[JobLine]:
        """Those kept whose numbers are greater."""
        if self._shown is None:
            return await self._database.job_lines(self._job_id, number)
        return [line for line in self._shown if line.number > number]

    async def close(self) -> None:
        """Write what is waiting; from now on lines are read from the database."""
        if self._writing is not None:
            await self._writing
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            await self._write()
        if self._are_kept:
            self._shown = None

    def _start_writing(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write_batch())

    async def _write_batch(self) -> None:
        await self._write()
        self._writing = None
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_SECONDS, self._start_writing)

    async def _write(self) -> None:
        batch = list(self._waiting)
        self._waiting.clear()
        try:
            await self._database.add_job_lines(self._job_id, batch, KEPT_LINES)
        except Exception as e:
            # A full disk ends no job. These lines are shown, and gone after a restart.
            self._are_kept = False
            _log.warning("lines of job %s are not kept: %s", self._job_id, e)
        assert self._shown is not None
        self._shown.extend(batch)
        self._on_shown()
