"""The way to an engine of another machine by ssh: the program forwards the engine's socket to one of ours.

The SDK's own way needs paramiko and opens a connection for each request, which it can neither time out nor interrupt.
"""

import asyncio
import logging
import shutil
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.errors import Code, SlipstreamError
from orchestrator.tether import tethered

_REMOTE_SOCKET = "/var/run/docker.sock"
_OPEN_SECONDS = 30.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 30.0
_SAID_LINES = 5
_OPTIONS = (
    "BatchMode=yes",
    "ExitOnForwardFailure=yes",
    "StreamLocalBindUnlink=yes",
    "StreamLocalBindMask=0177",
    "ConnectTimeout=15",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
)
_log = logging.getLogger(__name__)


class Tunnel:
    """Keeps `ssh -L` running. `address` is ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder: Path | None = None
        self._said: deque[str] = deque(maxlen=_SAID_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Connect; the unix:// address that leads there. SlipstreamError misconfigured with what ssh said."""
        program = shutil.which("ssh")
        if program is None:
            raise SlipstreamError(Code.MISCONFIGURED, f"{self._address} needs the program `ssh`, which is not here")
        self._folder = Path(tempfile.mkdtemp(prefix="slipstream-ssh-"))
        socket = self._folder / "engine.sock"
        argv = tethered(program, *_arguments(self._address, socket))
        await self._start(argv)
        self._keeper = asyncio.create_task(self._keep(argv), name=f"ssh to {self._address}")
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                while not socket.exists():
                    if self._process is None:
                        raise self._failed("ssh ended")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            await self.close()
            raise self._failed(f"no connection within {_OPEN_SECONDS:.0f} s") from None
        except SlipstreamError:
            await self.close()
            raise
        return f"unix://{socket}"

    async def close(self) -> None:
        """End ssh."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
            self._process = None
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _start(self, argv: list[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _keep(self, argv: list[str]) -> None:
        """Start it again, with growing pauses, whenever it ends."""
        pause = 1.0
        while True:
            process = self._process
            if process is not None:
                assert process.stderr is not None
                began = asyncio.get_running_loop().time()
                with suppress(ValueError):
                    async for line in process.stderr:
                        self._said.append(line.decode(errors="replace").strip())
                await process.wait()
                self._process = None
                _log.warning("ssh to %s ended: %s", self._address, " ".join(self._said))
                if asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_SECONDS:
                    pause = 1.0
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            with suppress(OSError):
                await self._start(argv)

    def _failed(self, why: str) -> SlipstreamError:
        return SlipstreamError(
            Code.MISCONFIGURED,
            f"{self._address} cannot be reached: {why}" + (f": {' '.join(self._said)}" if self._said else ""),
            hint="the user of the orchestrator needs a key without a passphrase and the host's key in known_hosts; "
            "try the same with `ssh`",
        )


def _arguments(address: str, socket: Path) -> list[str]:
    parts = urlsplit(address)
    remote = parts.path if parts.path not in ("", "/") else _REMOTE_SOCKET
    argv = ["-N", "-T", "-L", f"{socket}:{remote}"]
    for option in _OPTIONS:
        argv += ["-o", option]
    if parts.port is not None:
        argv += ["-p", str(parts.port)]
    if parts.username is not None:
        argv += ["-l", parts.username]
    return [*argv, "--", parts.hostname or ""]
