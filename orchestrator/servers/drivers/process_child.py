"""A llama-server that is a child of this process: its log, its end, its memory."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs.secrets import without_folders
from orchestrator.schemas import Failure
from orchestrator.servers.cgroups import oom_kills
from orchestrator.servers.drivers.groups import group_bytes
from orchestrator.servers.failures import LINES_TO_CLASSIFY, TAIL_LINES, classify
from orchestrator.servers.logs import LogBuffer

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_KILL_TIMEOUT_SECONDS = 10.0
_DRAIN_TIMEOUT_SECONDS = 1.0
# What is read at once, and the longest line that is kept whole.
_CHUNK_BYTES = 8 << 10
# A log that comes faster than this fills its pipe, and its server waits: better than that everybody else does.
_WINDOW_SECONDS = 0.02
_WINDOW_LINES = 1000
_WINDOW_BYTES = 256 << 10


@dataclass
class ProcessChild:
    """A running llama-server process. `port` is known once it listens."""

    process: asyncio.subprocess.Process
    api_key: str
    log: LogBuffer
    port: int | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    first_line: int = 0
    container: str | None = None
    _watcher: asyncio.Task[None] | None = None
    _killed: bool = False
    _is_oom: bool = False

    def __post_init__(self) -> None:
        self._oom_kills = oom_kills()
        # One string object for the life of the child: it is in every upstream request.
        self.authorization = f"Bearer {self.api_key}"

    def watch(self, on_line: Callable[[], None]) -> None:
        """Read its log and wait for its end, from now on."""
        reader = asyncio.create_task(self._read(on_line), name=f"log of {self.pid}")
        self._watcher = asyncio.create_task(self._watch(reader), name=f"end of {self.pid}")

    @property
    def pid(self) -> int:
        """Process id, also of the process group."""
        return self.process.pid

    @property
    def url(self) -> str:
        """Address to talk to; SlipstreamError server_stopped before it listens."""
        if self.port is None:
            raise SlipstreamError(Code.SERVER_STOPPED, "the server does not listen yet")
        return f"http://127.0.0.1:{self.port}"

    async def stop(self, grace_seconds: float) -> None:
        """TERM to the group, wait, KILL, reap. Idempotent; when it returns the process is gone."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.exited.wait()
        if not self.exited.is_set():
            self.kill()
            async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
                await self.exited.wait()

    @property
    def is_dead(self) -> bool:
        """Asked of the kernel, since the event loop hears of a death only in its next turn."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """KILL to the group, without waiting."""
        self._killed = self._killed or not self.is_dead
        self._signal(signal.SIGKILL)

    async def host_bytes(self) -> int | None:
        """RAM of the whole group, file pages of mapped weights included."""
        return await asyncio.to_thread(group_bytes, self.pid)

    def tail(self) -> tuple[str, ...]:
        """The last lines of this very process: the log goes back to those before it."""
        return self.log.tail(TAIL_LINES, after=self.first_line)

    def failure(self) -> Failure:
        """Why it ended, from exit status and last lines."""
        lines = self.log.tail(LINES_TO_CLASSIFY, after=self.first_line)
        return classify(self.process.returncode, lines, oom=self._is_oom, ours=self._killed)

    def _signal(self, number: signal.Signals) -> None:
        # The group, not the process alone: a server's own children must go too.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read(self, on_line: Callable[[], None]) -> None:
        stream = self.process.stdout
        assert stream is not None
        part, is_cut = b"", False
        lines, size, began = 0, 0, time.monotonic()
        while chunk := await stream.read(_CHUNK_BYTES):
            *whole, part = (part + chunk).split(b"\n")
            for raw in whole:
                if not is_cut:
                    self._take(raw)
                is_cut = False
                on_line()
            if len(part) > _CHUNK_BYTES:
                if not is_cut:
                    self._take(part)
                part, is_cut = b"", True
            if not whole:
                on_line()
            lines, size = lines + len(whole), size + len(chunk)
            if lines >= _WINDOW_LINES or size >= _WINDOW_BYTES:
                # One that has ended need not be slowed: what is left to read is bounded, and is read to its end.
                left = 0.0 if self.process.returncode is not None else began + _WINDOW_SECONDS - time.monotonic()
                await asyncio.sleep(max(0.0, left))
                lines, size, began = 0, 0, time.monotonic()
        if part and not is_cut:
            self._take(part)

    def _take(self, raw: bytes) -> None:
        # Folders of this machine stay here: lines end up in errors and in the log that clients follow.
        line = without_folders(raw[:_CHUNK_BYTES].decode(errors="replace").rstrip("\r"))
        self.log.append(line if len(raw) <= _CHUNK_BYTES else f"{line} (cut: longer than {_CHUNK_BYTES >> 10} KiB)")
        if self.port is None and (match := _LISTENING.search(line)):
            self.port = int(match[1])
            self.listening.set()

    async def _watch(self, reader: asyncio.Task[None]) -> None:
        await self.process.wait()
        # SIGKILL that is not ours comes from the kernel more often than from a person; its counter tells.
        was_killed = self.process.returncode == -signal.SIGKILL and not self._killed
        self._is_oom = was_killed and oom_kills() > self._oom_kills
        # Nothing of the group may stay, whatever ended its leader; a survivor would also hold the pipe open.
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_SECONDS):
                await reader
        self.exited.set()
