"""What an operator's command wants of one server, until that is so."""

import asyncio
import time
from dataclasses import dataclass, field

from orchestrator.errors import SlipstreamError
from orchestrator.servers.instance import Instance
from orchestrator.servers.server import Server


@dataclass(eq=False)
class Operation:
    """A server is to run as its goals say, or is to be down (`leaving`). At most one for each server: the newest."""

    server: Server
    leaving: bool = False
    replaces: tuple[Server, ...] = ()
    drain_seconds: float | None = None
    must_go: tuple[Instance, ...] = ()
    since: float = field(default_factory=time.monotonic)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_reached(self) -> bool:
        """Whether what was asked for is so."""
        server = self.server
        if self.leaving:
            return not server.instances
        serving = server.serving
        is_up = serving is not None and server.is_current(serving)
        return is_up and all(instance.phase is None for instance in self.must_go)

    def reach(self) -> None:
        """What was asked for is so. It holds until it is released: first what is wanted has to be written."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: SlipstreamError) -> None:
        """It cannot be, or a newer one took its place."""
        self.release()
        if not self.done.done():
            self.done.set_exception(error)
            # Whoever waits sees it; without this, one that nobody awaits would be reported as lost.
            self.done.exception()

    def release(self) -> None:
        """Nobody wants this any more."""
        if self.server.operation is self:
            self.server.operation = None
