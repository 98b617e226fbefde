"""One run of a job: a child process, read to its end and reaped, whatever it does."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs.complaints import Complaints
from orchestrator.jobs.events import ChildEvent, ErrorEvent, LineEvent, ResultEvent, read_event
from orchestrator.jobs.secrets import masking
from orchestrator.schemas import JobError
from orchestrator.tether import tethered

_CHUNK_BYTES = 1 << 14
_EVENT_LIMIT_BYTES = 4 << 20
_FLOOD_LINES = 100
_FLOOD_PAUSE_SECONDS = 0.005
_DRAIN_TIMEOUT_SECONDS = 1.0
_EXIT_TIMEOUT_SECONDS = 5.0
_log = logging.getLogger(__name__)

Outcome = ResultEvent | ErrorEvent


class Child:
    """A running child. `kill` ends it at once; `finish` answers when it is gone."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, on_event: Callable[[ChildEvent], None]) -> None:
        self._process = process
        self._on_event = on_event
        self._mask = masking()
        self._complaints = Complaints(name, self._mask)
        self._outcome: Outcome | None = None
        self._broken: str | None = None
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Process id, also of its session and process group."""
        return self._process.pid

    def kill(self) -> None:
        """KILL to the group, without waiting. What it started in other groups is tethered to it."""
        # Once it is reaped, its number may be another's.
        if self._process.returncode is None:
            self._kill_group()

    async def finish(self) -> Outcome | None:
        """What it reported; None if it ended without: `failure` then says how."""
        readers = [asyncio.create_task(self._read_events()), asyncio.create_task(self._read_complaints())]
        await self._process.wait()
        # Nothing of the group may stay, whatever ended its leader.
        self._kill_group()
        if self._overdue is not None:
            self._overdue.cancel()
        _, late = await asyncio.wait(readers, timeout=_DRAIN_TIMEOUT_SECONDS)
        for reader in late:  # somebody holds the pipe open who is not of the group
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return self._outcome

    def failure(self) -> JobError:
        """How it ended when it reported nothing, with its last words."""
        status = self._process.returncode
        hint = None
        if self._broken is not None:
            message = f"the work was ended: {self._broken}"
        elif status is not None and status < 0:
            message = f"the work was killed by {signal.Signals(-status).name}"
            hint = "the machine may have run out of memory" if -status == signal.SIGKILL else None
        else:
            message = f"the work ended with status {status} and without a result"
        details = {"exit_status": status, "log_tail": self._complaints.tail()}
        return JobError(code=Code.INTERNAL, message=message, hint=hint, details=details)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_events(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in _lines(self._process.stdout, _EVENT_LIMIT_BYTES):
                if len(line) > _EVENT_LIMIT_BYTES:
                    self._break(f"it wrote an event of more than {_EVENT_LIMIT_BYTES >> 20} MiB")
                    break
                self._take(read_event(line))
        except ValueError:
            self._break("it wrote something that is no event")
        except Exception:
            # Nobody would read the pipe any longer, and the child would wait for ever.
            _log.exception("an event of %d could not be taken", self.pid)
            self._break("its event could not be taken")
        while await self._process.stdout.read(_CHUNK_BYTES):
            pass  # the pipe is closed when it is at its end

    def _take(self, event: ChildEvent) -> None:
        if self._outcome is not None:
            return
        match event:
            case ResultEvent() | ErrorEvent():
                self._outcome = self._masked(event)
                # A thread of its own can keep a child from ending, and its work is done.
                self._overdue = asyncio.get_running_loop().call_later(_EXIT_TIMEOUT_SECONDS, self.kill)
            case LineEvent(text=text):
                self._on_event(LineEvent(event="line", text=self._mask(text)))
            case _:
                self._on_event(event)

    def _masked(self, event: Outcome) -> Outcome:
        if isinstance(event, ResultEvent):
            return event
        texts = {"message": self._mask(event.error.message), "hint": event.error.hint and self._mask(event.error.hint)}
        return ErrorEvent(event="error", error=event.error.model_copy(update=texts))

    def _break(self, how: str) -> None:
        if self._outcome is None:
            self._broken = how
        self.kill()

    async def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr, _CHUNK_BYTES):
            self._complaints.add(line.decode(errors="replace"))


async def _lines(stream: asyncio.StreamReader, limit_bytes: int) -> AsyncIterator[bytes]:
    """Lines without their ends. A longer one comes in pieces of more than `limit_bytes`."""
    begun = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield bytes(begun + line)
            begun.clear()
        begun += rest
        if len(begun) > limit_bytes:
            yield bytes(begun)
            begun.clear()
        if len(lines) > _FLOOD_LINES:
            # A child that floods waits for us, the event loop for nobody.
            await asyncio.sleep(_FLOOD_PAUSE_SECONDS)
    if begun:
        yield bytes(begun)


async def spawn(module: str, request: dict[str, Any], name: str, on_event: Callable[[ChildEvent], None]) -> Child:
    """Run a module in a session of its own, tied to our life; on the main thread (see tether.py).

    `name` stands before its lines in the log.
    """
    try:
        # A file, not a pipe: nothing waits for a child that does not read.
        with os.fdopen(os.memfd_create("request"), "wb") as stdin:
            stdin.write(json.dumps(request).encode())
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *tethered(sys.executable, "-P", "-m", module),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=_CHUNK_BYTES,
            )
    except OSError as e:
        raise SlipstreamError(Code.INTERNAL, f"no process could be started for the work: {e.strerror}") from e
    return Child(process, name, on_event)
