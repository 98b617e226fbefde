"""A request's hold on a server: while it lasts the server is not ended, except at the end of its drain."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.errors import Code, SlipstreamError

if TYPE_CHECKING:
    from orchestrator.servers.instance import Instance
    from orchestrator.servers.server import Server


class Lease:
    """Given by `Manager.lease`; `release` is always called, once the answer has ended.

    `cut` is set when the answer must end now: its drain is over, or its server is being ended.
    """

    def __init__(self, server: "Server", instance: "Instance", on_release: Callable[["Lease"], None]) -> None:
        self.server = server
        self.instance = instance
        self.cut = asyncio.Event()
        self._error: SlipstreamError | None = None
        self._on_release: Callable[[Lease], None] | None = on_release

    @property
    def url(self) -> str:
        """Address of the server; SlipstreamError server_stopped when it has gone."""
        return self.instance.running_child().url

    @property
    def authorization(self) -> str:
        """Value of the header `authorization` for it."""
        return self.instance.running_child().authorization

    @property
    def is_dead(self) -> bool:
        """Whether the server has ended, as far as can be told without waiting."""
        return self.instance.child is None or self.instance.child.is_dead

    def end(self, error: SlipstreamError) -> None:
        """Have the answer end with `error`."""
        self._error = self._error or error
        self.cut.set()

    def cut_error(self) -> SlipstreamError:
        """Why the answer has to end."""
        return self._error or SlipstreamError(Code.DRAINED, "the answer had to end", retry_after_seconds=1)

    def release(self) -> None:
        """The answer has ended. Idempotent."""
        if self._on_release is not None:
            on_release, self._on_release = self._on_release, None
            on_release(self)
