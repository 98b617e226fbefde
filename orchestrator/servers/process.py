"""The process driver: one llama-server as a child that never outlives us."""

import asyncio
import os
import re
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import Failure
from orchestrator.servers.logs import LogBuffer
from orchestrator.tether import tethered

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")
_LINE_LIMIT_BYTES = 1 << 20
_TAIL_LINES = 20
_KILL_TIMEOUT_SECONDS = 10.0
_DRAIN_TIMEOUT_SECONDS = 1.0
# What a GPU runtime needs to know; nothing else of our environment reaches a server, least of all LLAMA_ARG_*.
_PASSED_PREFIXES = ("CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "GGML_", "OMP_", "GPU_DEVICE_")
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


def child_environment(empty_folder: Path, api_key: str | None = None) -> dict[str, str]:
    """Environment of a server: GPU variables, an empty home, and a key that only we know.

    `empty_folder` exists and stays empty, so that no configuration of the user's is read.
    """
    env = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
    env |= {name: str(empty_folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LLAMA_CACHE")}
    return env | ({"LLAMA_API_KEY": api_key} if api_key else {})


@dataclass
class Child:
    """A running llama-server process. `port` is known once it listens."""

    process: asyncio.subprocess.Process
    api_key: str
    log: LogBuffer
    port: int | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    first_line: int = 0
    _watcher: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        # One string object for the life of the child: it is in every upstream request.
        self.authorization = f"Bearer {self.api_key}"

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
        self._signal(signal.SIGKILL)

    def tail(self) -> tuple[str, ...]:
        """The last lines of this very process: the log goes back to those before it."""
        return self.log.tail(min(_TAIL_LINES, self.log.count - self.first_line))

    def failure(self) -> Failure:
        """Why it ended, from exit status and last lines."""
        code = self.process.returncode
        tail = self.tail()
        said = next((line for line in reversed(tail) if _is_complaint(line)), "")
        if code is not None and code < 0:
            reason, end = "killed", f"llama-server was killed by {signal.Signals(-code).name}"
        else:
            reason, end = "exited", f"llama-server ended with status {code}"
            said = said or (tail[-1] if tail else "")
        message = f"{end}: {said}" if said else end
        return Failure(reason=reason, message=message, exit_code=code, log_tail=tail)

    def _signal(self, number: signal.Signals) -> None:
        # The group, not the process alone: a server's own children must go too.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read(self, on_line: Callable[[], None]) -> None:
        stream = self.process.stdout
        assert stream is not None
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line beyond the limit: asyncio has dropped it
                self.log.append("(a log line of more than 1 MiB was dropped)")
                continue
            if not raw:
                break
            # Folders of this machine stay here: lines end up in errors and in the log that clients follow.
            line = _FOLDERS.sub("", raw.decode(errors="replace").rstrip("\n"))
            self.log.append(line)
            on_line()
            if self.port is None and (match := _LISTENING.search(line)):
                self.port = int(match[1])
                self.listening.set()

    async def _watch(self, reader: asyncio.Task[None]) -> None:
        await self.process.wait()
        # Nothing of the group may stay, whatever ended its leader; a survivor would also hold the pipe open.
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_SECONDS):
                await reader
        self.exited.set()


def _is_complaint(line: str) -> bool:
    return bool(re.search(r"^error|\sE\s|error:|failed|GGML_ASSERT|terminate called", line))


async def spawn(
    binary: Path, argv: tuple[str, ...], empty_folder: Path, log: LogBuffer, on_line: Callable[[], None]
) -> Child:
    """Start a server in a process group of its own, tied to our life; on the main thread (see tether.py)."""
    api_key = secrets.token_urlsafe(24)
    process = await asyncio.create_subprocess_exec(
        *tethered(str(binary), *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=child_environment(empty_folder, api_key),
        cwd=empty_folder,
        start_new_session=True,
        limit=_LINE_LIMIT_BYTES,
    )
    child = Child(process, api_key, log, first_line=log.count)
    reader = asyncio.create_task(child._read(on_line), name=f"log of {process.pid}")
    child._watcher = asyncio.create_task(child._watch(reader), name=f"end of {process.pid}")
    return child
