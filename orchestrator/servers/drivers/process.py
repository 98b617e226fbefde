"""The process driver: llama-servers as children that never outlive us."""

import asyncio
import logging
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.binary import output, read_flags
from orchestrator.servers.devices import host_memory, parse_devices
from orchestrator.servers.drivers.base import Device, Found, Order
from orchestrator.servers.drivers.groups import MARK, is_alive, marked
from orchestrator.servers.drivers.process_child import ProcessChild
from orchestrator.servers.flags import FlagTable
from orchestrator.tether import tethered

# What of a log may lie between a child and us, beside the kernel's own 64 KiB.
_BUFFER_BYTES = 64 << 10
_KILL_TIMEOUT_SECONDS = 10.0
_LEFTOVER_SECONDS = 5.0
_POLL_SECONDS = 0.05
_log = logging.getLogger(__name__)
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


class ProcessDriver:
    """Runs servers as children of this process. They die with it, so there is never one to adopt.

    `owner` marks their environment: what outlives us all the same is found by it, and ended. `listed` is what the
    binary last said of its devices.
    """

    def __init__(self, binary: Path, empty_folder: Path, owner: str) -> None:
        self.binary = binary
        self.listed = ""
        self._empty_folder = empty_folder
        self._owner = owner
        self._flags: FlagTable | None = None
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Read the flags of the binary, which shows that it runs."""
        await self.flags(None)

    async def close(self) -> None:
        """Nothing is held."""

    async def flags(self, image: str | None) -> FlagTable:
        """Flags of the binary, by its own --help; read once."""
        if image is not None:
            raise SlipstreamError(
                Code.INVALID_MODEL_FILE,
                f"place.image is {image!r}, and this host runs processes, which have no images",
                hint="take it out, or name a Docker host in place.host",
            )
        async with self._reading:
            if self._flags is None:
                self._flags = await read_flags(self.binary, child_environment(self._empty_folder))
        return self._flags

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        """RAM, and what the binary lists."""
        if (await self.flags(None)).knows("list-devices"):
            self.listed = await output(self.binary, "--list-devices", child_environment(self._empty_folder))
        return (host_memory(), *parse_devices(self.listed))

    async def start(self, order: Order) -> ProcessChild:
        """Start a server in a process group of its own, tied to our life; on the main thread (see tether.py)."""
        argv = order.launch.argv_at("127.0.0.1", 0, str(self._empty_folder))
        api_key = secrets.token_urlsafe(24)
        try:
            process = await asyncio.create_subprocess_exec(
                *tethered(str(self.binary), *argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(self._empty_folder, api_key) | {MARK: self._owner},
                cwd=self._empty_folder,
                start_new_session=True,
                limit=_BUFFER_BYTES,
            )
        except OSError as e:
            raise SlipstreamError(
                Code.SERVER_START_FAILED, f"no process can be started for {order.model!r}: {e.strerror}"
            ) from e
        child = ProcessChild(process, api_key, order.log, first_line=order.log.count)
        child.watch(order.on_line)
        return child

    async def found(self) -> tuple[Found, ...]:
        """Groups of processes with our mark that are no children of ours."""
        return await asyncio.to_thread(marked, self._owner)

    async def adopt(self, found: Found, order: Order) -> ProcessChild:
        """Refused: its log went to a pipe that nobody reads any more."""
        raise SlipstreamError(Code.CONFLICT, f"the process {found.id} of {found.model!r} cannot be taken over")

    async def remove(self, found: Found) -> None:
        """End the group of one that outlived us."""
        # By now its number may be that of another group.
        if found.id not in {other.id for other in await self.found()}:
            return
        group = int(found.id)
        for number, seconds in ((signal.SIGTERM, _LEFTOVER_SECONDS), (signal.SIGKILL, _KILL_TIMEOUT_SECONDS)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while await asyncio.to_thread(is_alive, group):  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
                    return
        _log.error("the process %s of %s, left behind by an earlier orchestrator, does not end", found.id, found.model)
