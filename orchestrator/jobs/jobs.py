"""All jobs: a queue, a limit of those that run at a time, and what is kept of them."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from typing import Any, TypeVar

from orchestrator.db import Database, IdempotencyKey, JobRecord
from orchestrator.errors import Code, SlipstreamError, internal_error
from orchestrator.jobs.events import ErrorEvent, ResultEvent
from orchestrator.jobs.figures import Figures
from orchestrator.jobs.job import Job
from orchestrator.jobs.process import spawn
from orchestrator.schemas import JobError, JobEvent, JobList, JobState, JobView

KEPT_JOBS = 200
# Of the second that a cancel may take; a child that sits in the kernel may take longer to go.
_CANCEL_TIMEOUT_SECONDS = 0.7
_CLOSE_TIMEOUT_SECONDS = 10.0
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """A kind of work; its module calls `child.run` when it runs as a program."""

    name: str
    module: str


class Jobs:
    """Every job that is kept. What a method has answered survives a kill at any instant."""

    def __init__(self, database: Database, kinds: Iterable[Kind], parallel: int = 2) -> None:
        self._database = database
        self._kinds = {kind.name: kind for kind in kinds}
        self.figures = Figures(self._kinds)
        self._parallel = parallel
        self._jobs: dict[str, Job] = {}
        self._keys: dict[str, IdempotencyKey] = {}
        self._queue: list[Job] = []
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._submitting = asyncio.Lock()
        self._is_closing = False

    async def open(self) -> None:
        """Run what is queued, and again what was interrupted, in the order it was asked for."""
        self._keys = {key.key: key for key in self._database.idempotency_keys()}
        for record in self._database.jobs():
            job = self._jobs[record.id] = Job(self._database, record, self.figures)
            if job.is_over:
                continue
            job.believe(job.changed(state=JobState.QUEUED))
            if record.kind in self._kinds:
                self._queue.append(job)
            else:
                why = JobError(code=Code.MISCONFIGURED, message=f"this version knows no work of kind {record.kind!r}")
                await self._end(job, JobState.FAILED, error=why)
        self._schedule()

    def begin_close(self) -> None:
        """End children and followers at once; nothing is started any more."""
        self._is_closing = True
        for job in self._jobs.values():
            job.is_left = True
            job.notify()
            if job.child is not None:
                job.child.kill()

    async def close(self) -> None:
        """End the children; unfinished jobs stay for the next `open`."""
        self.begin_close()
        tasks = [*self._running.values(), *self._tasks]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_SECONDS)
            if late:
                _log.error("%d jobs did not end within %.0f s", len(late), _CLOSE_TIMEOUT_SECONDS)

    async def submit(
        self, kind: str, subject: str, request: dict[str, Any], *, key: str, idempotency_key: str | None = None
    ) -> JobView:
        """Ask for work; the job is on disk when this answers. `request` is JSON without secrets.

        A live job with the same kind and key is joined. An idempotency key that came before gives its job, ended
        or not; SlipstreamError conflict when it came with another request.
        """
        if kind not in self._kinds:
            raise ValueError(f"no kind {kind!r}, expected one of {', '.join(self._kinds)}")
        return await self._to_the_end(self._submit(kind, subject, request, key, idempotency_key))

    def get(self, id: str) -> JobView:
        """One job; SlipstreamError not_found."""
        return self._job(id).view()

    def list(self) -> JobList:
        """Every job, the newest first."""
        return JobList(jobs=tuple(job.view() for job in reversed(self._jobs.values())))

    def live(self) -> Mapping[tuple[str, str], int]:
        """How many wait for their turn and how many run, by kind and state."""
        states = (JobState.QUEUED, JobState.RUNNING)
        live = Counter({(kind, str(state)): 0 for kind in self._kinds for state in states})
        live.update((job.record.kind, str(job.record.state)) for job in self._jobs.values() if not job.is_over)
        return live

    async def cancel(self, id: str) -> JobView:
        """End a job, and answer with it within a second; one that has ended answers as it is."""
        job = self._job(id)
        if not job.is_over:
            # At once, so that nobody who asks from now on joins it.
            job.is_cancelling = True
            await self._to_the_end(self._cancel(job))
        return job.view()

    async def wait(self, id: str) -> JobView:
        """The job when it has ended; SlipstreamError shutting_down when the orchestrator ends first."""
        job = self._job(id)
        await job.over()
        if not job.is_over:
            raise _shutting_down()
        return job.view()

    def follow(self, id: str, after_line: int = 0) -> AsyncIterator[JobEvent]:
        """The job as it is, its lines after `after_line`, then lines and progress as they come, then its end.

        A shutdown ends it without that end.
        """
        return self._job(id).follow(after_line)

    def _job(self, id: str) -> Job:
        if id not in self._jobs:
            raise SlipstreamError(
                Code.NOT_FOUND, f"no job {id[:100]!r}", hint=f"the last {KEPT_JOBS} that have ended are kept"
            )
        return self._jobs[id]

    async def _submit(self, kind: str, subject: str, request: dict[str, Any], key: str, given: str | None) -> JobView:
        fingerprint = sha256(dumps([kind, request], sort_keys=True).encode()).hexdigest()
        async with self._submitting:
            if given is not None and given in self._keys:
                return self._known(self._keys[given], fingerprint)
            if self._is_closing:
                raise _shutting_down()
            job = next((job for job in self._jobs.values() if job.work == (kind, key) and _can_be_joined(job)), None)
            if job is not None:
                if given is not None:
                    idempotency_key = IdempotencyKey(given, job.record.id, fingerprint)
                    await self._database.add_idempotency_key(idempotency_key)
                    self._keys[given] = idempotency_key
                return job.view()
            record = JobRecord(secrets.token_hex(8), kind, subject, key, request, created=time.time())
            new_key = None if given is None else IdempotencyKey(given, record.id, fingerprint)
            await self._database.set_job(record, new_key)
            if new_key is not None:
                self._keys[new_key.key] = new_key
            job = self._jobs[record.id] = Job(self._database, record, self.figures)
            job.is_left = self._is_closing
            self._queue.append(job)
            self._schedule()
            return job.view()

    def _known(self, key: IdempotencyKey, fingerprint: str) -> JobView:
        if key.fingerprint != fingerprint:
            raise SlipstreamError(
                Code.CONFLICT,
                f"the idempotency key {key.key!r} came with another request before, that of job {key.job}",
                hint="use a new key for a new request",
            )
        return self.get(key.job)

    async def _cancel(self, job: Job) -> None:
        if job in self._queue:
            self._queue.remove(job)
        else:
            if job.child is not None:
                job.child.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_TIMEOUT_SECONDS):
                    await job.over()
        # The child may still be dying, but nothing of it runs again.
        await self._end(job, JobState.CANCELLED)

    def _schedule(self) -> None:
        """Begin what may begin: as many as are allowed at a time, none while a child for the same work is there."""
        for job in list(self._queue):
            if self._is_closing or len(self._running) >= self._parallel:
                return
            if all(job.work != other.work for other in self._running):
                self._queue.remove(job)
                self._running[job] = asyncio.create_task(self._run(job), name=f"job {job.record.id}")

    async def _run(self, job: Job) -> None:
        try:
            await self._run_child(job)
        except SlipstreamError as e:
            await self._end(job, JobState.FAILED, error=_told(e))
        except Exception:
            _log.exception("job %s failed", job.record.id)
            await self._end(job, JobState.FAILED, error=_told(internal_error()))
        finally:
            if job.child is not None:
                job.child.kill()
            del self._running[job]
            self._schedule()

    async def _run_child(self, job: Job) -> None:
        await job.lines.open()
        if job.is_cancelling:
            # Its end may be kept by now: a later record would bring it back.
            await self._end(job, JobState.CANCELLED)
            return
        begun = job.changed(state=JobState.RUNNING, started=time.time(), runs=job.record.runs + 1)
        await self._database.set_job(begun)
        job.believe(begun)
        _log.info("job %s: %s %s, run %d", begun.id, begun.kind, begun.subject, begun.runs)
        job.child = await spawn(self._kinds[begun.kind].module, begun.request, f"job {begun.id}", job.take)
        if job.is_cancelling or self._is_closing:
            job.child.kill()
        match await job.child.finish():
            case ResultEvent(result=result):
                await self._end(job, JobState.SUCCEEDED, result=result)
            case ErrorEvent(error=error):
                await self._end(job, JobState.FAILED, error=error)
            case None if job.is_cancelling:
                await self._end(job, JobState.CANCELLED)
            case None if self._is_closing:
                await job.lines.close()
            case None:
                await self._end(job, JobState.FAILED, error=job.child.failure())

    async def _end(
        self, job: Job, state: JobState, *, result: dict[str, Any] | None = None, error: JobError | None = None
    ) -> None:
        """Keep the end, then tell it. The first end counts."""
        if job.is_ending:
            await job.over()
            return
        job.is_ending = True
        await job.lines.close()
        ended = job.changed(state=state, ended=time.time(), result=result, error=error)
        try:
            await self._database.set_job(ended)
        except Exception:
            _log.exception("the end of job %s is not kept; it will run again after a restart", ended.id)
        job.believe(ended)
        self.figures.ended[ended.kind, str(state)] += 1
        _log.info("job %s: %s%s", ended.id, state, f", {error.message}" if error else "")
        await self._forget_old()

    async def _forget_old(self) -> None:
        ended = sorted((job.record for job in self._jobs.values() if job.is_over), key=lambda r: r.ended or r.created)
        old = {record.id for record in ended[:-KEPT_JOBS]}
        if not old:
            return
        try:
            await self._database.forget_jobs(old)
        except Exception:
            _log.exception("%d old jobs are not forgotten yet", len(old))
            return
        for id in old:
            self._jobs.pop(id, None)
        self._keys = {key: known for key, known in self._keys.items() if known.job not in old}

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller that leaves must not leave a change half made."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _can_be_joined(job: Job) -> bool:
    return not (job.is_over or job.is_ending or job.is_cancelling)


def _told(error: SlipstreamError) -> JobError:
    return JobError(code=error.code, message=error.message, hint=error.hint, details=error.details)


def _shutting_down() -> SlipstreamError:
    return SlipstreamError(Code.SHUTTING_DOWN, "the orchestrator is shutting down", hint="ask again when it is back")
