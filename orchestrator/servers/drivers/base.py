"""What runs llama-servers: a driver for each host, and a child for each server that runs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.schemas import Failure
from orchestrator.servers.flags import FlagTable
from orchestrator.servers.logs import LogBuffer

if TYPE_CHECKING:
    from orchestrator.servers.launch import Launch

HOST = "host"
"""Name and kind of RAM among the devices of a host."""


@dataclass(frozen=True)
class Device:
    """Memory of a host as its llama-server names it; HOST is RAM. `kind` is cuda, rocm, vulkan, … or HOST."""

    name: str
    kind: str
    total_bytes: int
    free_bytes: int

    @property
    def is_accelerator(self) -> bool:
        """Whether it is anything but RAM."""
        return self.kind != HOST


@dataclass(frozen=True)
class Order:
    """What to start. `on_line` is called for every log line, on the event loop: it is a sign of progress."""

    model: str
    launch: "Launch"
    log: LogBuffer
    on_line: Callable[[], None]


@dataclass(frozen=True)
class Found:
    """A server of ours from before a restart of ours. `launch` is the key of its launch, `id` the driver's own."""

    id: str
    model: str
    launch: str


class Child(Protocol):
    """A llama-server that was started. `exited` and `listening` are set by the driver, on the event loop."""

    exited: asyncio.Event
    listening: asyncio.Event
    authorization: str

    @property
    def pid(self) -> int | None:
        """Process id on the host, where it is known."""

    @property
    def container(self) -> str | None:
        """Name of its container, where it runs in one."""

    @property
    def url(self) -> str:
        """Address to talk to; SlipstreamError server_stopped before it listens."""

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, as far as can be told without waiting."""

    async def stop(self, grace_seconds: float) -> None:
        """TERM, wait, KILL, reap. Idempotent; when it returns nothing of it is left."""

    def kill(self) -> None:
        """KILL, without waiting."""

    def tail(self) -> tuple[str, ...]:
        """The last log lines of this very child."""

    async def host_bytes(self) -> int | None:
        """RAM it holds now, file pages of mapped weights included; None where that cannot be told."""

    def failure(self) -> Failure:
        """Why it ended, once it has."""


class Driver(Protocol):
    """Runs servers on one host."""

    async def open(self) -> None:
        """Connect. SlipstreamError misconfigured when that cannot be done."""

    async def close(self) -> None:
        """Let go of the connection. Children are ended by their owner before."""

    async def flags(self, image: str | None) -> FlagTable:
        """Flags of the llama-server that will run, by its own --help; SlipstreamError when there is none.

        `image` is a name of the host's `images`, or of an image; None: the host's default. A process has no image.
        """

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        """RAM and accelerators, with what is free now, as the llama-server itself sees them."""

    async def start(self, order: Order) -> Child:
        """Start a server; SlipstreamError when not even that can be done."""

    async def found(self) -> tuple[Found, ...]:
        """Servers of ours that run though this driver did not start them."""

    async def adopt(self, found: Found, order: Order) -> Child:
        """Take one over, its log from now on."""

    async def remove(self, found: Found) -> None:
        """End one that nobody wants."""
